"""Replaced attributes, and callbacks for imported modules."""

import functools
import importlib
import importlib.util
import sys
import types
import zipfile
from collections.abc import Iterator
from importlib.machinery import BuiltinImporter
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.base.patching import Patches, ReportingFinder, is_replaceable, when_imported


class Target:
    def method(self) -> str:
        return "original"

    @classmethod
    def made(cls) -> str:
        return cls.__name__

    @staticmethod
    def joined(*parts: str) -> str:
        return "".join(parts)

    length = len
    inner = dict
    size = property(lambda self: 1)
    cached = functools.lru_cache(lambda self: 1)
    cached_class_method = classmethod(functools.lru_cache(lambda cls: 1))
    partial = functools.partialmethod(made)
    other = "text".upper
    static_of_c = staticmethod(len)
    lazy = functools.cached_property(lambda self: 1)


def appending(text: str) -> Any:
    """A ``make`` that appends a text to what the original returns."""

    def make(original: Any) -> Any:
        return lambda *args: original(*args) + text

    return make


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, and has not been."""
    name = f"patched_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if type(f) is not ReportingFinder])
    yield name
    sys.modules.pop(name, None)


def test_replaced_method_calls_the_replacement_until_it_is_undone() -> None:
    """A class method stays a class method, and a static method stays a static method."""
    patches = Patches()
    patches.replace(Target, "method", appending("!"))
    patches.replace(Target, "made", appending("?"))
    patches.replace(Target, "joined", appending("."))
    assert (Target().method(), Target.made()) == ("original!", "Target?")
    assert (Target.joined("a", "b"), Target().joined("a", "b")) == ("ab.", "ab.")
    patches.undo()
    assert (Target().method(), Target.made(), patches.active) == ("original", "Target", False)
    assert (Target().joined("a"), type(vars(Target)["joined"])) == ("a", staticmethod)


def test_only_functions_are_replaceable() -> None:
    """In a class, instances have to bind them; a function in C that a static method holds is one, too."""
    members = [name for name in vars(Target) if not name.startswith("__")]
    replaceable = {name for name in members if is_replaceable(Target, name)}
    assert replaceable == {"method", "made", "joined", "static_of_c"}
    assert is_replaceable(sys.modules["math"], "sqrt")
    assert not is_replaceable(sys.modules["fnmatch"], "_compile_pattern"), "callers may clear its cache"


def test_undo_keeps_a_later_patch_of_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only attributes that still hold the replacement are restored."""
    monkeypatch.setattr(Target, "method", Target.method)  # restored afterwards
    patches = Patches()
    patches.replace(Target, "method", appending("!"))
    later = appending("+")(Target.method)
    Target.method = later  # type: ignore[method-assign]
    patches.undo()
    assert Target.method is later


def test_callback_is_called_once_after_the_module_is_executed(module: str) -> None:
    """The callback sees the module's names, and is called once though added twice."""
    values: list[Any] = []

    def callback(found: types.ModuleType) -> None:
        values.append(found.value)

    when_imported(module, callback)
    when_imported(module, callback)
    assert module not in sys.modules
    imported = importlib.import_module(module)
    assert values == [1]
    importlib.reload(imported)
    assert values == [1]
    assert "exec_module" not in vars(imported.__loader__)


def test_callback_for_an_imported_module_is_called_at_once() -> None:
    """Nothing waits for a module that has been imported."""
    found: list[types.ModuleType] = []
    when_imported("json", found.append)
    assert found == [sys.modules["json"]]


@pytest.mark.internal_errors
def test_failing_callback_is_logged_and_the_import_succeeds(
    module: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Further callbacks are called."""
    found: list[types.ModuleType] = []
    when_imported(module, lambda _: 1 / 0)
    when_imported(module, found.append)
    assert importlib.import_module(module).value == 1
    assert len(found) == 1
    assert "internal error while adding to" in caplog.text


def test_failing_module_raises_as_ever_and_is_reported_when_it_succeeds(module: str, tmp_path: Path) -> None:
    """The callback waits for an execution without an exception."""
    path = tmp_path / f"{module}.py"
    path.write_text("raise KeyError('mine')\n")
    found: list[types.ModuleType] = []
    when_imported(module, found.append)
    with pytest.raises(KeyError, match="mine"):
        importlib.import_module(module)
    assert found == []
    path.write_text(
        "value = 'it works now, at last'\n"
    )  # longer: Python would take the compiled module of before
    importlib.invalidate_caches()
    assert importlib.import_module(module).value == "it works now, at last"
    assert len(found) == 1


def test_missing_module_is_missing_as_ever() -> None:
    """A callback may wait for a module that does not exist."""
    when_imported("no_such_module_at_all", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
    assert importlib.util.find_spec("no_such_module_at_all") is None


def test_loader_of_two_modules_reports_only_the_awaited_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zip file's modules share a loader; the awaited one is looked for first."""
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("zipped_awaited.py", "value = 1\n")
        archive.writestr("zipped_other.py", "value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path / "two.zip"))
    found: list[str] = []
    when_imported("zipped_awaited", lambda module: found.append(module.__name__))
    assert importlib.util.find_spec("zipped_awaited") is not None
    assert importlib.import_module("zipped_other").value == 2
    assert found == []
    assert importlib.import_module("zipped_awaited").value == 1
    assert found == ["zipped_awaited"]


def test_built_in_module_is_imported_without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class loads all built-in modules, and stays as it is."""
    monkeypatch.delitem(sys.modules, "faulthandler", raising=False)
    before = vars(BuiltinImporter)["exec_module"]
    found: list[types.ModuleType] = []
    when_imported("faulthandler", found.append)
    importlib.import_module("faulthandler")
    assert vars(BuiltinImporter)["exec_module"] is before
    assert found == []
