"""A model name is found as a folder or on the Hub, and the Hub's errors stay useful."""

from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from grpo_nb.models.base_weights import weight_files
from grpo_nb.models.sources import cache_root, resolve_model


def test_single_file_comes_before_an_old_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "old.safetensors"}}'
    )
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(GatedRepoError, GatedRepoError), (RepositoryNotFoundError, FileNotFoundError)],
)
def test_gated_model_keeps_the_error_of_the_hub(
    error: type[Exception], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: str) -> None:
        response = httpx.Response(403, request=httpx.Request("GET", "https://hub"))
        raise error("Access is restricted.", response=response)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(raised, match="Access is restricted"):
        resolve_model("owner/gated")


def test_home_folder_of_no_user_is_not_found() -> None:
    with pytest.raises(FileNotFoundError, match=r"looked for .*/~nobody-here/model\)"):
        resolve_model("~nobody-here/model")


def test_empty_cache_variable_means_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_NB_CACHE", "")
    assert cache_root() == Path("~/.cache/grpo_nb").expanduser()
