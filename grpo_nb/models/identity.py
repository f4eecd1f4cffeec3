"""What a run was trained on: its base model's weights, known again by their bytes, and the chat template that was in use.

An adapter is only worth something on the weights that it was trained on, and nothing else notices when those in the base's
folder have changed since: merged with others, it still is "base plus adapter". And a template that was set on the tokenizer
in a notebook is nowhere on disk but here.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

TEMPLATE_FILE, CALLS_FILE = "chat_template.jinja", "response_template.json"


def weights_identity(folder: Path) -> str | None:
    """Return a hash of the safetensors in a folder: names, shapes, types, and three rows of each tensor.

    The same for the same tensors in other shards. A training changes nearly every value, and a base of gigabytes is read in a
    moment; a change between the rows that are read is not seen. None where there are no such files, or not all of them.

    >>> weights_identity(Path("nowhere")) is None
    True
    """
    import torch
    from safetensors import safe_open

    known: dict[str, str] = {}
    # Not every file there: some repositories hold the weights a second time, and a cache need not have both.
    files = weight_files(folder, "model")
    if not files or not all(file.is_file() for file in files):
        return None
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                tensor = opened.get_slice(name)
                shape = tensor.get_shape()
                found = hashlib.sha256(f"{tensor.get_dtype()} {shape}".encode())
                rows = (
                    [tensor[at : at + 1] for at in (0, shape[0] // 2, shape[0] - 1)]
                    if shape and shape[0]
                    else []
                )
                for row in rows or [opened.get_tensor(name)]:
                    found.update(row.contiguous().reshape(-1).view(torch.uint8).numpy())
                known[name] = found.hexdigest()
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def weight_files(folder: Path, stem: str) -> list[Path]:
    """The files that transformers would load: those of the index, else the one."""
    index, single = folder / f"{stem}.safetensors.index.json", folder / f"{stem}.safetensors"
    if not index.is_file():
        return [single] if single.is_file() else []
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if any(
        Path(name).name != name for name in names
    ):  # the files themselves are links in the Hub's cache
        raise ValueError(
            f"{str(index)!r} names a file which is no file beside it: fetch the model again."
        )
    return [folder / name for name in names]


def base_identity(model: Any, name: str) -> str | None:
    """Return the identity of the weights that a model was loaded from, if they are here in 16 bit; nothing is fetched.

    Args:
        model: As it will be trained. Where it came from a folder, that is looked at, whatever the settings say.
        name: The model of the settings.
    """
    loaded_from = Path(str(getattr(model.config, "_name_or_path", "")))
    return weights_here(str(loaded_from) if (loaded_from / "config.json").is_file() else name)


def weights_here(name: str) -> str | None:
    """Return the identity of the weights of a folder or a name on the Hub; None where they are not here: nothing is fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return weights_identity(
            Path(name if Path(name).is_dir() else snapshot_download(name, local_files_only=True))
        )
    except (HFValidationError, LocalEntryNotFoundError):
        # Made in memory, or a run in 4 bit from the quantized copy that Unsloth fetches in place of the 16-bit files.
        return None


def require_trained_on(adapter: Path, base: str, found: str | None) -> None:
    """Refuse weights that are not those on which an exported adapter was trained, as far as its export and these are known.

    Args:
        adapter: Its folder, with the `verification.json` of its export.
        base: What these weights are called.
        found: Their identity.

    Raises:
        ValueError: They are others.
    """
    file = adapter / "verification.json"
    wanted = json.loads(file.read_text("utf-8")).get("base_weights") if file.is_file() else None
    if None not in (wanted, found) and wanted != found:
        raise ValueError(
            f"the adapter {str(adapter)!r} was trained on other weights than those of {base!r} here, and is worth nothing on "
            "them. Take the base model that it was trained on, or the merged model of its run (gn.export_merged)."
        )


def keep_template(run_folder: Path, tokenizer: Any) -> None:
    """Write the chat template that a run is trained with into its folder, and how calls of tools are read, where it has any."""
    if isinstance(tokenizer.chat_template, str):
        (run_folder / TEMPLATE_FILE).write_text(tokenizer.chat_template, "utf-8")
    if (calls := getattr(tokenizer, "response_template", None)) is not None:
        (run_folder / CALLS_FILE).write_text(json.dumps(calls), "utf-8")


def template_of(folder: Path) -> str | None:
    """Return the chat template that a run or an adapter was trained with; None if its folder has none."""
    file, older = (
        folder / TEMPLATE_FILE,
        folder / "tokenizer_config.json",
    )  # that of an older transformers
    held = json.loads(older.read_text("utf-8")).get("chat_template") if older.is_file() else None
    # Several by name are transformers' to choose from.
    return file.read_text("utf-8") if file.is_file() else (held if isinstance(held, str) else None)


def with_template_of(folder: Path, tokenizer: Any) -> Any:
    """Give a tokenizer the chat template that a run or an adapter was trained with, if its folder has one, and return it."""
    tokenizer.chat_template = template_of(folder) or tokenizer.chat_template
    if (calls := folder / CALLS_FILE).is_file():
        tokenizer.response_template = json.loads(calls.read_text("utf-8"))
    return tokenizer


def tokenizer_for(run_folder: Path, base: str | Path) -> Any:
    """Return the tokenizer of a run's base, with the chat template that the run was trained with."""
    from transformers import AutoTokenizer

    return with_template_of(run_folder, AutoTokenizer.from_pretrained(base))
