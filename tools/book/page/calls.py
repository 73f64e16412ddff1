"""Calls the functions of this folder by name, with arguments and results as JSON, for the scripts of a page."""

from __future__ import annotations

import importlib
import json
import traceback


def call(name: str, arguments: str) -> str:
    """Call "module.function" with the arguments of a JSON list.

    Returns JSON: {"value": what it returned}, or {"error": a sentence} if it raised.
    """
    module, _, function = name.partition(".")
    try:
        return json.dumps({"value": getattr(importlib.import_module(module), function)(*json.loads(arguments))})
    except ValueError as error:  # the sentence that our functions raise for bad input
        return json.dumps({"error": str(error)})
    except Exception as error:
        traceback.print_exc()  # the browser's console shows it
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
