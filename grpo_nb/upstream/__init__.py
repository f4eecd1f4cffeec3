"""Private symbols of Unsloth, TRL, transformers, PEFT and vLLM, one file per library.

Each function first checks that the symbols that it reads, calls or replaces are there. The error
for a missing symbol names the version that the function was written for. `GRPOTrainer.__init__`
sets some attributes that are not on the class, so the class cannot be checked for them. The tests
of tool episodes check these attributes.

There are two exceptions elsewhere: `models.identity` reads `_name_or_path`, and the trainer is a
subclass of TRL's and uses its attributes. docs/reference/upstream.md lists the symbols with the
reason and the upstream line.
"""
