"""Every test keeps its cache and its runs to itself, and leaves torch's global generator alone."""

import pytest
import torch


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory, monkeypatch):
    """A cache of its own for the whole session, and a fresh current folder for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors: more threads only wait for each other."""
    torch.set_num_threads(1)
