"""The smallest possible tokenizer: each byte is an id, and the tags follow."""

from pasta_jax.lang.tags import TagIds


class ByteTokenizer:
    name = "bytes"
    tags = TagIds(256)
    end_of_turn = 324
    bos = 325
    vocab_size = 384
    model_vocab = 384
    stop_ids = (324,)
    template = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.piece, ids)).decode("utf-8", errors="replace")

    def piece(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b""
