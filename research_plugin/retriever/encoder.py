"""Texts to vectors. Instruction, pooling and lengths are settings, never guessed from a model's name or path.

A text is cut, tokenized without padding, sorted by length and computed in sub-batches of a bounded number of tokens;
what comes out depends on the text alone, but for rounding.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.document import without_surrogates
from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.packed_linear import pack_linear_layers
from research_plugin.retriever.settings import EncoderSettings
from research_plugin.retriever.torch_device import pick_device, pick_dtype, use_threads
from research_plugin.retriever.unpadded import speed_up

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# Any texts will do, as long as they never change: their vectors are how one model is told from another.
_PROBES = ("Paris is the capital of France.", "In which year was the bridge over the river opened to traffic?")
_PROBE_LENGTH = 64
_CHARS_PER_TOKEN = 16
# Texts of one sub-batch are of like lengths, so that attention has little padding; on a CPU larger ones are no faster
# (MiniLM-L6 in bfloat16 on one Zen 4 core: 2.2 ms a query with 768 tokens and with 4,096). A GPU wants large ones.
CPU_BATCH_TOKENS = 768


class Encoder:
    """A text encoder on one device. Called from one thread at a time.

    Args:
        settings: see `EncoderSettings`.
        threads: CPU threads of one computation.

    Raises:
        ConfigError: a setting is wrong, the model cannot be loaded or does not fit the settings.
    """

    def __init__(self, settings: EncoderSettings, threads: int = 1) -> None:
        if not settings.model_path:
            raise ConfigError(
                "encoder.model_path is not set; give the index's model: a folder, or a hub name such as "
                "intfloat/e5-base-v2"
            )
        self.settings = settings
        self._threads = threads
        # The Rust tokenizer would otherwise take every core.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
        kind = _SentenceTransformer if settings.backend == "sentence_transformers" else _Transformer
        self._model: _Transformer | _SentenceTransformer = kind(settings)
        self.dimension = int(self.encode(_PROBES, "", _PROBE_LENGTH).shape[1])

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return float32 [n, dimension]."""
        return self.encode(texts, self.settings.query_instruction, self.settings.query_max_length)

    def encode_passages(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return float32 [n, dimension]."""
        return self.encode(texts, self.settings.passage_instruction, self.settings.passage_max_length)

    def encode(
        self,
        texts: Sequence[str],
        instruction: str,
        max_length: int,
        pooling: str | None = None,
        normalize: bool | None = None,
    ) -> npt.NDArray[np.float32]:
        """Encode with settings other than the encoder's own, to find out what an index was built with.

        Returns:
            float32 [n, dimension].

        Raises:
            SearchError: the model gave infinities or NaN.
        """
        import numpy as np
        import torch

        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        use_threads(self._threads)
        texts = [without_surrogates(text) for text in texts]
        with torch.inference_mode():
            vectors = self._model.encode(texts, instruction, max_length, pooling or self.settings.pooling)
            if self.settings.normalize if normalize is None else normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            found: npt.NDArray[np.float32] = vectors.cpu().numpy()
        if not np.isfinite(found).all():
            raise SearchError(
                f"encoder {self.settings.model_path}: the vectors hold infinities or NaN in {self._model.dtype}; "
                "set encoder.dtype=float32 or bfloat16"
            )
        return found

    def fingerprint(self) -> dict[str, Any]:
        """Settings that decide what a vector means, and the vectors of two fixed texts (base64 of float16)."""
        import numpy as np

        settings = self.settings
        probe = self.encode(_PROBES, "", _PROBE_LENGTH).astype("<f2")
        return {
            "model": str(settings.model_path),
            # A sentence-transformers model pools by itself; None is compared with nothing, the probe vectors are.
            "pooling": settings.pooling if settings.backend == "transformers" else None,
            "normalize": settings.normalize,
            "query_instruction": settings.query_instruction,
            "passage_instruction": settings.passage_instruction,
            "passage_max_length": settings.passage_max_length,
            "probe": base64.b64encode(np.ascontiguousarray(probe).tobytes()).decode("ascii"),
        }


def probe_vectors(fingerprint: dict[str, Any]) -> npt.NDArray[np.float32]:
    """The vectors that `Encoder.fingerprint` packed, float32 [2, dimension]."""
    import numpy as np

    packed = np.frombuffer(base64.b64decode(fingerprint["probe"]), dtype="<f2")
    return packed.astype(np.float32).reshape(len(_PROBES), -1)


class _Transformer:
    """A Hugging Face encoder; pooling is done here."""

    def __init__(self, settings: EncoderSettings) -> None:
        from transformers import AutoModel, AutoTokenizer

        path = str(settings.model_path)
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path)
            self._model, info = AutoModel.from_pretrained(path, dtype=self.dtype, output_loading_info=True)
        except Exception as error:  # OSError, ValueError, KeyError, SafetensorError, ...: whatever the files provoke
            raise _not_loaded(path, error) from error
        if self._model.config.is_encoder_decoder:
            raise ConfigError(f"encoder.model_path={path!r}: an encoder-decoder; set backend=sentence_transformers")
        _check_weights(path, info["missing_keys"], settings.pooling)
        self._model.to(self.device).eval()
        speed_up(self._model)
        self._model.config.use_cache = False
        _check_lengths(settings, self._tokenizer, getattr(self._model.config, "max_position_embeddings", 10**9))
        self._pad = self._tokenizer.pad_token_id or 0
        self._batch_tokens = settings.batch_tokens
        if self.device.type == "cpu":
            self._batch_tokens = min(self._batch_tokens, CPU_BATCH_TOKENS)

    def encode(self, texts: list[str], instruction: str, max_length: int, pooling: str) -> torch.Tensor:
        import torch

        ids = self._tokenize([instruction + text for text in texts], max_length)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        parts = [
            self._forward([ids[i] for i in chosen], pooling)
            for chosen in token_batches(order, [len(row) for row in ids], self._batch_tokens)
        ]
        vectors = torch.cat(parts)
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return vectors[back.to(vectors.device)]

    def _tokenize(self, texts: list[str], max_length: int) -> list[list[int]]:
        """Ids of each text with its special tokens, at most ``max_length`` and at least one.

        Only the beginning of a very long text is tokenized. It ends where a word ends, so its tokens are the first ones
        of the whole text; if they are not enough, the whole text is taken after all.
        """
        starts = [_start(text, _CHARS_PER_TOKEN * max_length) for text in texts]
        ids: list[list[int]] = self._ids(starts, max_length)
        for i, row in enumerate(ids):
            if len(row) < max_length and len(starts[i]) < len(texts[i]):
                ids[i] = self._ids([texts[i]], max_length)[0]
        return [row or [self._pad] for row in ids]

    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        return self._tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]  # type: ignore[no-any-return]

    def _forward(self, ids: list[list[int]], pooling: str) -> torch.Tensor:
        """Vectors of one sub-batch, float32 [n, dimension]; padding stands on the right."""
        import torch

        longest = max(len(row) for row in ids)
        tokens = torch.tensor([row + [self._pad] * (longest - len(row)) for row in ids])
        lengths = torch.tensor([len(row) for row in ids])
        mask = torch.arange(longest) < lengths[:, None]
        tokens, lengths, mask = (part.to(self.device) for part in (tokens, lengths, mask))
        output = self._model(input_ids=tokens, attention_mask=mask.long())
        if pooling == "pooler":
            return output.pooler_output.float()  # type: ignore[no-any-return]
        hidden = output.last_hidden_state
        if pooling == "cls":
            return hidden[:, 0].float()  # type: ignore[no-any-return]
        if pooling == "last":
            return hidden[torch.arange(len(ids), device=self.device), lengths - 1].float()  # type: ignore[no-any-return]
        return (hidden.float() * mask[..., None]).sum(1) / lengths[:, None]  # type: ignore[no-any-return]


class _SentenceTransformer:
    """A sentence-transformers model with its own modules (pooling, projections)."""

    def __init__(self, settings: EncoderSettings) -> None:
        from sentence_transformers import SentenceTransformer

        path = str(settings.model_path)
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        try:
            self._model = SentenceTransformer(path, device=str(self.device), model_kwargs={"dtype": self.dtype})
        except Exception as error:  # OSError, ValueError, KeyError, SafetensorError, ...: whatever the files provoke
            raise _not_loaded(path, error) from error
        # Its modules may want what the layers in between compute, so these stay.
        pack_linear_layers(self._model)
        _check_lengths(settings, self._model.tokenizer)
        self._batch_tokens = settings.batch_tokens
        if self.device.type == "cpu":
            self._batch_tokens = min(self._batch_tokens, CPU_BATCH_TOKENS)

    def encode(self, texts: list[str], instruction: str, max_length: int, pooling: str) -> torch.Tensor:
        """``pooling`` is not looked at: the model's own decides."""
        self._model.max_seq_length = max_length
        size = max(1, self._batch_tokens // max_length)
        return self._model.encode(
            texts, prompt=instruction, batch_size=size, convert_to_tensor=True, show_progress_bar=False
        ).float()


def _start(text: str, most: int) -> str:
    """The words of a text that end within its first ``most`` characters; all of it if not one does."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(" ", 0, most), 0)] or text


def token_batches(order: list[int], lengths: list[int], most_tokens: int) -> list[list[int]]:
    """Cut rows sorted by length so that rows x longest stays within ``most_tokens``; one row at least."""
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[i] <= most_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _check_weights(path: str, missing: Sequence[str], pooling: str) -> None:
    """A layer that the files do not hold is filled with random numbers: fine for an unused pooler, else never."""
    needed = [name for name in missing if pooling == "pooler" or "pooler" not in name]
    if needed:
        raise ConfigError(
            f"encoder.model_path={path!r}: the files hold no weights for {', '.join(sorted(needed)[:5])}; "
            "use another encoder.pooling, or backend=sentence_transformers"
        )


def _check_lengths(settings: EncoderSettings, tokenizer: Any, positions: int = 10**9) -> None:
    shortest, longest = tokenizer.num_special_tokens_to_add() + 1, min(tokenizer.model_max_length, positions)
    for name in ("query_max_length", "passage_max_length"):
        if not shortest <= getattr(settings, name) <= longest:
            raise ConfigError(
                f"encoder.{name}={getattr(settings, name)}: {settings.model_path} takes {shortest} to {longest} tokens "
                "(special ones included)"
            )


def _not_loaded(path: str, error: Exception) -> ConfigError:
    missing = path.startswith(("/", ".", "~")) and not Path(path).is_dir()
    reason = "no such folder" if missing else (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(
        f"encoder.model_path={path!r}: cannot be loaded ({reason}). Where no hub can be reached, copy config.json, "
        "tokenizer.json, tokenizer_config.json, vocab.txt or its like and model.safetensors (for sentence-transformers "
        "also modules.json and 1_Pooling/) into a folder and set encoder.model_path to that folder"
    )
