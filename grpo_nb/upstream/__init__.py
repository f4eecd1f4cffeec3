"""Private symbols of Unsloth, TRL, transformers, PEFT and vLLM, one file per library.

Each function first checks that the symbols that it reads, calls or replaces are there. The error
for a missing symbol names the version that the function was written for. Attributes that TRL
sets in its trainer's `__init__` are not on the class: the tests of tool episodes check them.

There are two exceptions elsewhere: `models.identity` reads `_name_or_path`, and the trainer is a
subclass of TRL's and uses its attributes. docs/reference/upstream.md lists the symbols with the
reason and the upstream line.
"""
