// An order service with plain JDBC: an order and its event are saved in one transaction.
//
//     DATABASE_URL='jdbc:postgresql://…' java -cp postgresql.jar OrderService.java PRODUCT UNITS

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

class OrderService {
    record Order(int id, String product, int units) {
        /** Products of this service hold no character that JSON escapes; a real service uses its JSON library. */
        String json() {
            return "{\"order_id\": %d, \"product\": \"%s\", \"units\": %d}".formatted(id, product, units);
        }
    }

    /** Adds to the caller's transaction: the event exists if and only if the order does. */
    static void place(Connection connection, String product, int units) throws SQLException {
        Order order;
        try (var insert = connection.prepareStatement("INSERT INTO orders (product, units) VALUES (?, ?) RETURNING id")) {
            insert.setString(1, product);
            insert.setInt(2, units);
            try (var rows = insert.executeQuery()) {
                rows.next();
                order = new Order(rows.getInt(1), product, units);
            }
        }
        try (var record = connection.prepareStatement("SELECT outbox_record('order', ?, 'placed', ?::json)")) {
            record.setString(1, Integer.toString(order.id()));
            record.setString(2, order.json());
            record.execute();
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (var connection = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
            connection.setAutoCommit(false);
            try {
                place(connection, arguments[0], Integer.parseInt(arguments[1]));
                connection.commit();
            } catch (SQLException error) {
                connection.rollback();
                throw error;
            }
        }
    }
}
