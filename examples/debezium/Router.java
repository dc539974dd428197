import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Binary;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import io.debezium.engine.format.SerializationFormat;
import io.debezium.engine.format.SimpleString;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Executors;

/**
 * Runs an application.properties of Debezium Server without the server, and prints what its sink would be given: a line of JSON for each message.
 *
 * <pre>java -cp 'JARS/*' Router.java application.properties debezium.source.database.port=5433 …</pre>
 *
 * An argument replaces a property of the file; without a value, it removes the property. The program ends when its standard input does. If the
 * engine fails, the last line holds its errors, outermost first, and the status is 1.
 */
public class Router {
    static final ObjectMapper JSON = new ObjectMapper();
    /** The prefixes of the server, and what the engine calls them. As in the server, a later one wins. */
    static final Map<String, List<String>> PREFIXES = new LinkedHashMap<>();

    static {
        PREFIXES.put("debezium.source.", List.of(""));
        PREFIXES.put("debezium.format.", List.of("key.converter.", "value.converter.", "header.converter."));
        PREFIXES.put("debezium.format.key.", List.of("key.converter."));
        PREFIXES.put("debezium.format.value.", List.of("value.converter."));
        PREFIXES.put("debezium.format.header.", List.of("header.converter."));
        PREFIXES.put("debezium.transforms.", List.of("transforms."));
        PREFIXES.put("debezium.predicates.", List.of("predicates."));
    }

    public static void main(String[] arguments) throws Exception {
        // The libraries may log to the standard output, which is for messages only.
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Properties server = read(arguments);
        var format = KeyValueHeaderChangeEventFormat.of(
                format(server, "debezium.format.key"), format(server, "debezium.format.value"), format(server, "debezium.format.header"));
        DebeziumEngine<? extends ChangeEvent<?, ?>> engine = DebeziumEngine.create(format)
                .using(engineProperties(server))
                .notifying((events, committer) -> {
                    for (var event : events) {
                        out.println(line(message(event)));
                        committer.markProcessed(event);
                    }
                    committer.markBatchFinished();
                })
                .using((success, text, error) -> {
                    if (!success) {
                        fail(out, text, error);
                    }
                })
                .build();
        Executors.newSingleThreadExecutor().execute(engine);
        System.in.transferTo(OutputStream.nullOutputStream());
        engine.close();
        System.exit(0);
    }

    static Properties read(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(file);
        }
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] pair = argument.split("=", 2);
            if (pair[1].isEmpty()) {
                properties.remove(pair[0]);
            } else {
                properties.setProperty(pair[0], pair[1]);
            }
        }
        return properties;
    }

    static Properties engineProperties(Properties server) {
        Properties engine = new Properties();
        engine.setProperty("name", server.getProperty("debezium.sink.type"));
        for (String list : List.of("transforms", "predicates")) {
            if (server.containsKey("debezium." + list)) {
                engine.setProperty(list, server.getProperty("debezium." + list));
            }
        }
        PREFIXES.forEach((prefix, renamed) -> server.stringPropertyNames().stream().filter(name -> name.startsWith(prefix))
                .forEach(name -> renamed.forEach(
                        start -> engine.setProperty(start + name.substring(prefix.length()), server.getProperty(name)))));
        return engine;
    }

    @SuppressWarnings({"rawtypes", "unchecked"})
    static Class<SerializationFormat<Object>> format(Properties server, String name) {
        Class found = switch (server.getProperty(name, "json")) {
            case "json" -> Json.class;
            case "binary" -> Binary.class;
            case "simplestring" -> SimpleString.class;
            default -> throw new IllegalArgumentException(name + " is of a format that this program does not know");
        };
        return found;
    }

    static Map<String, Object> message(ChangeEvent<?, ?> event) {
        Map<String, Object> message = new LinkedHashMap<>();
        message.put("topic", event.destination());
        message.put("key", event.key());
        List<Object> headers = new ArrayList<>();
        event.headers().forEach(header -> headers.add(List.of(header.getKey(), text(header.getValue()))));
        message.put("headers", headers);
        message.put("payload", event.value() == null ? null : Base64.getEncoder().encodeToString(bytes(event.value())));
        return message;
    }

    /** The sinks of the server take bytes and text, and refuse the rest. */
    static byte[] bytes(Object value) {
        if (value instanceof byte[] bytes) {
            return bytes;
        }
        return text(value).getBytes(StandardCharsets.UTF_8);
    }

    static String text(Object value) {
        if (value instanceof String text) {
            return text;
        }
        throw new IllegalArgumentException("Unexpected data type '" + value.getClass().getName() + "'");
    }

    static String line(Object value) {
        try {
            return JSON.writeValueAsString(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static void fail(PrintStream out, String text, Throwable error) {
        List<String> errors = new ArrayList<>(List.of(String.valueOf(text)));
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            errors.add(cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        out.println(line(Map.of("failed", errors)));
        System.exit(1);
    }
}
