"""Quantize a GGUF file with the library of llama-cpp-python. A process of its own that imports neither the kit nor unsloth.

    python -I llama_cpp_quantize.py FOLDER SOURCE TARGET TYPE THREADS

FOLDER is where the package `llama_cpp` was found; what follows is as for llama.cpp's own `llama-quantize`, which calls the same
function (llama_cpp/llama_cpp.py of llama-cpp-python 0.3.36, tools/quantize/quantize.cpp of llama.cpp).
"""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> None:
    """Read the arguments and write the file; ends with 1 and the library's own words if it cannot."""
    folder, source, target, kind, threads = sys.argv[1:]
    # The package that was found, which need not be the first on this process's own path; the kit has a module of this name.
    sys.path.insert(0, folder)
    from llama_cpp import llama_cpp as library

    sys.path.pop(0)
    library.llama_backend_init()
    params = library.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}"), int(threads)
    status = library.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama_model_quantize returned {status}")


if __name__ == "__main__":
    main()
