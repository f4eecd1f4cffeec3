"""What an export is, once it is verified: a folder, and the checks it passed, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core import Cell, Part, Shown, Table, bold, escaped

if TYPE_CHECKING:
    import pandas

    from grpo_nb.runs import Run


Report = Callable[[str], None]


class ExportError(RuntimeError):
    """An export that was made but is not the trained model, or could not be verified. Nothing was left behind."""


@dataclass(frozen=True, repr=False)
class Export(Shown):
    """A verified export. Shows itself as a table of its checks."""

    path: Path
    """The folder."""
    verification: Mapping[str, Any]
    """`checks`: each check and whether it passed; `measured`: what was found, in words; and the numbers behind them."""
    kind: str = "merged"
    """`merged`, `adapter` or `gguf`."""
    run: Run | None = dataclasses.field(default=None, compare=False)
    """The run that it is of."""

    @property
    def file(self) -> Path:
        """What other programs are given: the GGUF file, or the folder."""
        return self.path / self.verification["file"] if self.kind == "gguf" else self.path

    @property
    def sentence(self) -> str:
        """The verification in words."""
        return {"merged": _merged_sentence, "adapter": _adapter_sentence, "gguf": _gguf_sentence}[self.kind](
            self.verification
        )

    @property
    def table(self) -> pandas.DataFrame:
        """The checks: name, whether it passed, what was measured."""
        import pandas

        return pandas.DataFrame(self._rows(), columns=["check", "passed", "measured"])

    def _rows(self) -> list[tuple[str, bool, str]]:
        measured = self.verification.get("measured", {})
        return [(name, ok, measured.get(name, "")) for name, ok in self.verification["checks"].items()]

    @property
    def checks(self) -> Table:
        """The checks as they are shown, the results in words."""
        rows = [(verdict(ok, "✓ passed" if ok else "✗ FAILED"), name, text) for name, ok, text in self._rows()]
        return Table(rows, head=("result", "check", "measured"), wide=(2,))

    def _parts(self) -> Iterable[Part]:
        return bold(self.path), self.checks, self.sentence


def verdict(is_good: bool, text: str) -> Cell:
    """A result in words, and on a panel in its colours for good and bad."""
    return Cell(text, f'<span class="gn-{"pass" if is_good else "fail"}">{escaped(text)}</span>')


def require_passed(verification: Mapping[str, Any], what: str) -> None:
    """Raise `ExportError` that names each failed check with what was measured, if there is one."""
    failed = [name for name, ok in verification["checks"].items() if not ok]
    if not failed:
        return
    measured = verification.get("measured", {})
    said = "; ".join(f"{name} ({measured[name]})" if measured.get(name) else name for name in failed)
    problems = verification.get("problems") or ()
    first = f" First of what differs: {'; '.join(problems[:5])}." if problems else ""
    raise ExportError(f"{what} is not the trained one, so it was not kept. Failed: {said}.{first}")


def _merged_sentence(v: Mapping[str, Any]) -> str:
    return (
        f"{v['dtype']}, holds {v['retained_change']:.1%} of the training's change; verified on {v['prompts']} "
        f"held-out prompts: greedy text equal to the adapter's on "
        f"{v['equal_greedy_text']:.0%}, {v['equal_greedy_text_near_ties_aside']:.0%} with near ties set aside; "
        f"log-probabilities {v['mean_logp_difference_to_adapter']:.3f} nats from the adapter's, "
        f"where the starting model's are {v['mean_logp_difference_of_base_to_adapter']:.3f} away; "
        f"{v['correct']} of {v['prompts']} answers right, the adapter's {v['correct_of_adapter']}"
    )


def _adapter_sentence(v: Mapping[str, Any]) -> str:
    return f"adapter of {v['tensors']} tensors for {v['base']}, every byte equal to the run's"


def _gguf_sentence(v: Mapping[str, Any]) -> str:
    return (
        f"{v['quantization']}, {v['bytes'] / 1e6:.0f} MB; verified through llama.cpp on {v['prompts']} held-out prompts: "
        f"greedy text equal to the merged model's on {v['equal_greedy_text']:.0%}, "
        f"{v['equal_greedy_text_near_ties_aside']:.0%} with near ties set aside; log-probabilities "
        f"{v['mean_logp_difference_to_merged']:.3f} nats from the merged model's; {v['correct']} of {v['prompts']} answers "
        f"right, the merged model's {v['correct_of_merged']}"
    )
