"""Commands in processes that are copies of this one: a new one would first import, for seconds, all that is here."""

import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress


class Forked:
    """A command that runs in a folder, in a process and a group of its own.

    Args:
        work: Called there; its exit status is what `work` gives, or what ends it.

    Attributes:
        printed, said: When it has ended, what it wrote to stdout and to stderr.
    """

    def __init__(self, work, folder):
        # Files, which are never full: nobody reads before it has ended.
        self._files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Python 3.12 on, where there are threads; none of them is needed
            self.pid = os.fork()
        if not self.pid:
            _become(work, folder, *(file.fileno() for file in self._files))
        self.printed, self.said, self._status = "", "", None

    def poll(self):
        """The exit status, minus the signal that killed it; None while it runs."""
        if self._status is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if process else None
        return self._status

    def send(self, number):
        """A signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self):
        """The exit status, minus the signal that killed it."""
        while self.poll() is None:
            time.sleep(0.01)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        self.printed, self.said = texts
        return self._status


def _become(work, folder, *streams):
    """Never returns: what is above on the stack belongs to pytest."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = sys.__unraisablehook__  # pytest has its own
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        status = work()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(int(status or 0))
