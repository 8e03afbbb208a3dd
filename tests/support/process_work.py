"""What supervised children do in the tests, by their first argument."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> int | None:
    match sys.argv[1:]:
        case ["status", status]:
            print("the last words", file=sys.stderr)
            return int(status)
        case ["sleep"]:
            print(os.getpid(), flush=True)
            time.sleep(3600)
        case ["busy"]:  # in C code, where no thread of Python runs
            print(os.getpid(), flush=True)
            sum(range(10**15))
        case ["family"]:
            child = subprocess.Popen(["sleep", "3600"])
            print(os.getpid(), child.pid, flush=True)
            child.wait()
        case ["orphan"]:  # it ends; what it has started holds its output open
            child = subprocess.Popen(["sleep", "3600"])
            print(child.pid, flush=True)
        case ["silent"]:  # done with its output, but not with itself
            os.close(1)
            time.sleep(3600)
        case ["chatter"]:
            while True:
                os.write(2, b"x" * 65536 + b"\n")
        case ["echo"]:
            for line in sys.stdin:
                print(line, end="", flush=True)
        case ["polite", note]:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                print(os.getpid(), flush=True)
                time.sleep(3600)
            except KeyboardInterrupt:
                with open(note, "w") as file:
                    file.write("tidy")
    return None
