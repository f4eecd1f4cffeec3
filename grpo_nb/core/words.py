"""What is said to a user: texts shortened and made fit for a notebook, arguments refused in one line that names the value."""

import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Control characters but for tabs and the ends of lines; a return alone writes over what stands in its line.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""


def excerpt(text: str, limit: int = 160) -> str:
    """Return a text as a literal that can be shown anywhere: control characters and lone surrogates escaped, shortened."""
    return shorten(repr(text).encode("utf-8", "backslashreplace").decode(), limit)


def shorten(text: str, limit: int) -> str:
    """Return a text up to a limit, and how long it is where it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def as_score(value: float) -> str:
    """Return a score as tables show it; `none` where there is no score."""
    return "none" if math.isnan(value) else f"{value:.4g}"


def displayable(text: str) -> str:
    """Return a text that every notebook can hold and every renderer shows to its end."""
    # A lone surrogate cannot be encoded, so a notebook that holds one cannot be saved; NUL ends some renderers' strings, and a
    # terminal obeys what begins with ESC.
    shown = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", shown)


def last_word(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return what the model said last in an episode; nothing where a tool had the last word, whose result is no answer."""
    last = turns[-1] if turns else {}
    return ("" if last.get("role") == "tool" else last.get("content")) or ""


def transcript(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return an episode as text: what the model said, its calls, and behind an arrow what came back.

    >>> called = {"function": {"name": "read", "arguments": {"place": "mill"}}}
    >>> transcript([{"role": "assistant", "content": "", "tool_calls": [called]}, {"role": "tool", "content": "7"}])
    'read(place=mill)\\n→ 7'
    """
    lines = []
    for turn in turns:
        said = str(turn.get("content") or "")
        lines += [f"→ {said}"] if turn.get("role") == "tool" else [said] * bool(said)
        for call in (one["function"] for one in turn.get("tool_calls") or ()):
            given = call["arguments"]
            if isinstance(given, Mapping):  # else the model wrote no names, and TRL has told it so
                given = ", ".join(f"{name}={value}" for name, value in given.items())
            lines.append(f"{call['name']}({given})")
    return "\n".join(lines)


def require_tokenizer(
    tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> None:
    """Refuse a tokenizer that cannot put a question to its model.

    Raises:
        ValueError: It has no chat template, or one that does not read these arguments: it would pass them over in silence.
    """
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError(
            "the tokenizer has no chat template, so nothing says how questions are put to this model: take its instruct "
            "version, or set tokenizer.chat_template to the template of a model of its family."
        )
    for name in chat_template_kwargs or ():
        if name != "tools" and not re.search(
            rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)
        ):
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which the tokenizer's chat template does not read: leave it out, "
                "chat_template_kwargs={}."
            )


def prompt_lengths(
    prompts: Iterable[Sequence[Mapping[str, str]]],
    tokenizer: Any,
    chat_template_kwargs: Mapping | None = None,
) -> list[int]:
    """Return the length of each prompt in tokens, with chat template, tools and generation prompt, as training sees it."""
    from jinja2 import TemplateError

    require_tokenizer(tokenizer, chat_template_kwargs)
    try:
        ids = tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **(chat_template_kwargs or {}),
            tokenizer_kwargs={"verbose": False},  # no warning of a prompt that is too long: that is what is counted here
        )  # fmt: skip
    except TemplateError as error:
        raise ValueError(
            f"the model's chat template refuses these messages ({error}). If it has no system role, make the task with "
            "gn.load_task(..., tokenizer=tokenizer), which puts the system prompt into the first user message."
        ) from error
    return [len(row) for row in ids["input_ids"]]


def in_line(value: Any, limit: int = 60) -> str:
    """Return a value as one short line, whatever it is.

    >>> in_line("two\\nlines"), in_line([1] * 100, 10)
    ("'two\\\\nlines'", '[1, 1, 1, ... (300 characters)')
    """
    return shorten(" ".join(repr(value).split()), limit)


def require_number(
    name: str,
    value: Any,
    least: float,
    most: float = math.inf,
    *,
    is_whole: bool = True,
    why: str = "",
) -> None:
    """Refuse what is no finite number between two bounds, both included.

    Args:
        name: Of the argument.
        value: What was given for it.
        least, most: The bounds.
        is_whole: Whether only whole numbers will do.
        why: Said behind it, such as what another value would mean.

    Raises:
        TypeError: No number, or none that is whole.
        ValueError: Not finite, or outside of the bounds.

    >>> require_number("steps", 0, 1)
    Traceback (most recent call last):
    ValueError: steps = 0 must be at least 1.
    """
    if isinstance(value, bool) or not isinstance(
        value, numbers.Integral if is_whole else numbers.Real
    ):
        raise TypeError(
            f"{name} = {in_line(value)} must be a {'whole ' if is_whole else ''}number{why}."
        )
    if not (least <= value <= most and value < math.inf):
        bounds = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise ValueError(f"{name} = {in_line(value)} must be {bounds}{why}.")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or as many of them as can be read."""
    known = sorted(map(str, known))
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return (
        f"; did you mean {nearest[0]!r}?"
        if nearest
        else f"; known: {shorten(', '.join(known), 600)}"
    )
