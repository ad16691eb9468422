"""Lines that stay, and on a terminal a last one that shows how far it has come."""

import shutil
import sys
import threading

ERASE = "\r\x1b[K"


class Terminal:
    """Several threads may say something at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moving = sys.stdout.isatty()
        self._progress = ""

    def say(self, line: str) -> None:
        with self._lock:
            self._write(f"{line}\n")

    def progress(self, line: str) -> None:
        """Nothing where it could not be replaced by the next one."""
        if self._moving:
            with self._lock:
                self._progress = line[: shutil.get_terminal_size().columns - 1]
                self._write("")

    def _write(self, text: str) -> None:
        before = ERASE if self._progress else ""
        print(f"{before}{text}{self._progress}", end="", flush=True)
