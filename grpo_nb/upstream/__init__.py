"""Private symbols of Unsloth, TRL, transformers, PEFT and vLLM, one file per library.

Most functions check that a symbol exists before they use it. The error for a missing symbol names
the version that the function was written for. `transformers.hide_loading_bars` uses only public
functions, and `transformers.forget_gguf_name` removes an attribute that may be missing. Attributes
that TRL sets only on an instance, such as `_is_vlm`, are checked by the tests of tool episodes.

These other places use private symbols: `models.base_weights` reads `_name_or_path`, the kit's
trainer is a subclass of TRL's and uses its attributes, `cpu.folded_lora` calls two operators of
`torch.ops.mkldnn`, and the training script that `scaleout` writes reads TRL's `_logs`.
docs/reference/upstream.md lists the symbols of this subpackage with the reason and the upstream
line.
"""
