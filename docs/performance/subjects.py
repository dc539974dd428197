#!/usr/bin/env python3
"""Measures the memory of a nats-server and the time of its restarts, by the number of subjects on a stream.

    python3 docs/performance/subjects.py nats-server 1000000 1000000    # a subject per message
    python3 docs/performance/subjects.py nats-server 1000000 4096       # 4,096 shards

Arguments: the program, messages, subjects. It starts a server of its own on a free port, with a store in a temporary folder, and needs no package.
"""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time


class Server:
    def __init__(self, program):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.program = program
        self.store = tempfile.mkdtemp()
        self.start()

    def start(self):
        """Starts it and connects. Returns the seconds until JetStream answers."""
        begun = time.time()
        arguments = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", self.store, "-l", self.store + "/log"]
        self.process = subprocess.Popen([self.program, *arguments])
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", self.port))
                break
            except OSError:
                time.sleep(0.005)
        self.file = self.socket.makefile("rb")
        self.file.readline()
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB answer 1\r\n')
        while self.ask("$JS.API.INFO", {}) is None:
            time.sleep(0.005)
        return time.time() - begun

    def ask(self, subject, body):
        body = json.dumps(body).encode()
        self.socket.sendall(b"PUB %s answer %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        while True:
            words = self.file.readline().split()
            if words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                answer = self.file.read(int(words[-1]))
                self.file.readline()
                # Without JetStream the server answers itself that nobody does.
                return json.loads(answer) if words[0] == b"MSG" else None

    def messages(self):
        return self.ask("$JS.API.STREAM.INFO.EVENTS", {})["state"]["messages"]

    def end(self, signal):
        self.socket.close()
        getattr(self.process, signal)()
        self.process.wait()

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return f"{int(line.split()[1]) // 1024} MiB"


def publish(server, messages, subjects):
    """Headers of about the size of ours, and 200 bytes of payload."""
    headers = b"NATS/1.0\r\nce-type: order.placed\r\nx-filler: %s\r\n\r\n" % (b"x" * 280)
    message = headers + b"x" * 200
    batch = []
    for n in range(1, messages + 1):
        subject = b"events.order.%d.placed" % (10_000_000 + n % subjects)
        batch.append(b"HPUB %s %d %d\r\n%s\r\n" % (subject, len(headers), len(message), message))
        if len(batch) == 2_000 or n == messages:
            server.socket.sendall(b"".join(batch))
            batch = []
            # So that nothing queues in the server.
            while n - server.messages() > (0 if n == messages else 20_000):
                time.sleep(0.01)


def main():
    program, messages, subjects = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    server = Server(program)
    try:
        config = {"name": "EVENTS", "subjects": ["events.>"], "storage": "file", "retention": "limits", "discard": "new"}
        config |= {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "num_replicas": 1, "duplicate_window": 100_000_000}
        server.ask("$JS.API.STREAM.CREATE.EVENTS", config)
        publish(server, messages, subjects)
        time.sleep(5)
        print(f"{messages} messages on {subjects} subjects: {server.memory()}")
        for signal in ["kill", "terminate"]:
            server.end(signal)
            seconds = server.start()
            assert server.messages() == messages
            print(f"after {signal}: answers after {seconds:.2f} s, {server.memory()}")
    finally:
        server.end("kill")
        shutil.rmtree(server.store)


main()
