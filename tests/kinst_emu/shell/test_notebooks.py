"""Tests that the notebooks in examples/ run and show the expected output."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NOTEBOOKS = ("path", "panic", "relocation")
SECONDS = 300  # time limit for a cell, in seconds


def execute(name, kernel, monkeypatch):
    """Execute a notebook and return the outputs of its cells."""
    monkeypatch.setenv("KINST_KERNEL", kernel)
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "remove the stored outputs"
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                   resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def shown(outputs, kind):
    return [text for one in outputs if (text := one.get("data", {}).get(kind))]


def held(name, outputs):
    """Assert that the outputs contain the results that the notebook explains."""
    said = "".join(one.get("text", "") for one in outputs) + "".join(shown(outputs, "text/plain"))
    pages = shown(outputs, "text/html")
    match name:
        case "path":
            assert any("srcdoc=" in page and "film" in page for page in pages)
            assert any("&lt;svg" in page and "firings" in page for page in pages)
            assert shown(outputs, "image/svg+xml")
        case "panic":
            assert ("panic" in said and "note_keep" in said) or "memset" in said
        case "relocation":
            assert "does not relocate" in said and "the machine is in the same state" in said
            assert any("srcdoc=" in page for page in pages)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_work_on_the_teaching_kernel(name, monkeypatch):
    held(name, execute(name, "teaching/amd64", monkeypatch))
