"""A reader who types the blocks of a page, one after the other, in a directory and a shell of its own.

Commands `otel-rollout …` without a pipe run in this process, because each would take a second to start.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from typer.testing import CliRunner

from otel_rollout.base.environment import PREFIXES
from otel_rollout.cli import app
from tests.docs_site.ways import Scratch
from tests.web.served import Served

_SECONDS = 120
_MAY_FIND_A_PROBLEM = ("doctor", "health")
"""Commands that exit with 1 if they find one."""
_ASSIGNED = re.compile(r"export (?:[A-Z_0-9]+=[^\s$`'\"]*\s*)+(?:#.*)?")
_WITHOUT_SERVER = {
    "OTEL_TRACES_EXPORTER=mlflow,delta": "OTEL_TRACES_EXPORTER=spool",
    "OTEL_TRACES_EXPORTER=mlflow": "OTEL_TRACES_EXPORTER=spool",
    "OTEL_TRACES_EXPORTER=weave": "OTEL_TRACES_EXPORTER=spool",
    "OTEL_TRACES_EXPORTER=otlp": "OTEL_TRACES_EXPORTER=spool",
}
"""The backends' own tests deliver to them. Here, spans stay in the spool."""


class Reader:
    """Types blocks, and fails at the first command that fails.

    Args:
        directory: where the reader is.
        scratch: what the directory has; its table is made by the caller.
        shutdown_timeout: seconds that a program waits for delivery.
    """

    def __init__(self, directory: Path, scratch: Scratch, shutdown_timeout: int = 0) -> None:
        self.directory = directory
        self._scratch = scratch
        self._commands = directory / "stands-in"
        for name in scratch.stands_in:
            self._write(f"stands-in/{name}", "#!/bin/sh\nexit 0\n").chmod(0o755)
        for name, text in {".venv/bin/activate": "", **scratch.files}.items():
            self._write(name, text)
        self._environ = self._first_environ(shutdown_timeout)

    def type_shell(self, block: str) -> str:
        """Run a block of the shell, and return what it has printed."""
        lines = self._replaced(block).replace("\\\n", " ").splitlines()
        printed = []
        for is_plain, together in groupby(lines, self._is_plain):
            if is_plain:
                printed += [self._type_plain(line) for line in together]
            else:
                script = "\n".join([*together, "env -0 > .environ"])
                printed.append(self._run(["bash", "-euo", "pipefail", "-c", script], keeps_environ=True))
        return "".join(printed)

    def type_python(self, blocks: list[str]) -> str:
        """Run blocks of Python as one program, and return what it has printed."""
        program = "\n".join(self._replaced(block) for block in (self._scratch.prelude, *blocks))
        self._write("page.py", program)
        return self._run([sys.executable, "page.py"])

    def check_variables(self) -> None:
        """Fail if a program finds a variable that the page has set unknown or unusable."""
        self._run([sys.executable, "-c", "import otel_rollout; otel_rollout.configure()"])

    def _first_environ(self, shutdown_timeout: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        path = [str(self._commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        return {
            **kept,
            "PATH": os.pathsep.join(path),
            "BROWSER": "true",
            "COLUMNS": "100",
            "OTEL_ROLLOUT_SPOOL_DIR": str(self.directory / "spool"),
            "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": str(shutdown_timeout),
        }

    def _is_plain(self, line: str) -> bool:
        words = shlex.split(line, comments=True)
        if not words or words == [".", ".venv/bin/activate"] or _ASSIGNED.fullmatch(line):
            return True
        return words[0] == "otel-rollout" and not {"|", ">", "&"} & set(words)

    def _type_plain(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[:1] == ["export"]:
            self._environ.update(word.split("=", 1) for word in words[1:])
        if words[:1] != ["otel-rollout"]:
            return ""
        if words[1] == "view":
            return self._view(words[2:])
        outcome = CliRunner().invoke(app, words[1:], env=self._in_process())
        allowed = (0, 1) if words[1] in _MAY_FIND_A_PROBLEM else (0,)
        assert outcome.exit_code in allowed, f"{line}\n{outcome.output}"
        return outcome.output

    def _in_process(self) -> Mapping[str, str | None]:
        """Return the changes to this process's environment for a command."""
        absent = {name: None for name in os.environ if name not in self._environ}
        return {**absent, **self._environ}

    def _view(self, words: list[str]) -> str:
        """Serve the pages, and ask for the first."""
        options = [word for word in words if word != "--open"]
        source = options[options.index("--from") + 1] if "--from" in options else ""
        source = source or self._environ.get("OTEL_ROLLOUT_DELTA_URI", "./rollouts")
        with Served(self.directory / source, self.directory) as server:
            answer = server.get("/")
            assert answer.status == 200
            return answer.text

    def _run(self, command: list[str], keeps_environ: bool = False) -> str:
        started = subprocess.Popen(
            command, cwd=self.directory, env=self._environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, errors = started.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # the shell's children, too
            raise
        assert started.returncode == 0, f"{command[-1]}\n{output}{errors}"
        assert "unknown" not in errors.lower(), errors
        if keeps_environ:
            pairs = (self.directory / ".environ").read_text().rstrip("\0").split("\0")
            self._environ = dict(pair.split("=", 1) for pair in pairs)
        return output + errors

    def _replaced(self, text: str) -> str:
        for given, typed in {**self._scratch.replaced, **_WITHOUT_SERVER}.items():
            text = text.replace(given, typed)
        return text.replace(".venv/bin/python", sys.executable)

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
