"""The library's methods inside other people's training loops."""

from importlib.util import find_spec

if find_spec("accelerate") is None:  # else a file far from the caller's import would be named
    raise ModuleNotFoundError("asa.integrations needs accelerate; pip install '.[trainer]'", name="accelerate")
