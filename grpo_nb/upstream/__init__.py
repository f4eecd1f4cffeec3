"""All uses of private symbols of Unsloth, TRL, transformers, PEFT and vLLM, one file per library.

Each function checks that the symbols it needs are there, and says for which version it was written.
docs/reference/upstream.md lists them with the reason and the upstream line.
"""
