"""Small tokenizers of the two kinds in use: byte-level BPE, and SentencePiece with byte fallback."""

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILY_TOKENS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)
WORDS = "the user says hello to the assistant and the assistant says hi there, thanks for the 你好 answer 42\n\n"
MERGES = [("▁", "h"), ("▁h", "i"), ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("a", "b"), ("l", "l")]


def byte_level(special: tuple[str, ...] = CHATML_TOKENS, *, trim_offsets: bool = False) -> Tokenizer:
    """Byte-level BPE with 300 tokens and more, as GPT-2 and Qwen have it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=300 + len(special),
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS] * 3, trainer)
    return backend


def sentencepiece(*, metaspace: bool = True, special: tuple[str, ...] = FAMILY_TOKENS) -> Tokenizer:
    """SentencePiece-like BPE with byte fallback, a space in front, as Llama 2 and Gemma have it."""
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>"])}
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "\n", *(chr(c) for c in range(33, 127)), "好", *("".join(merge) for merge in MERGES)]
    vocab |= {piece: len(vocab) + i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>", *special)]
    )
    return backend
