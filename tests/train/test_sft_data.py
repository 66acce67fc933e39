"""The data of supervised training: records that are too long are counted, or refused, in each split."""

import pytest

import configs.sft
from pasta_jax.errors import PastaError
from pasta_jax.runs.settings import changed
from pasta_jax.toy.task import HELD_OUT
from pasta_jax.toy.tokenizer import toy_tokenizer
from pasta_jax.train.sft_data import read_data, toy_examples


def test_records_too_long_for_the_rows_are_named_by_split(capsys):
    settings, tokenizer = configs.sft.tiny(), toy_tokenizer()
    data = settings.data
    train, held_out = (
        [len(one) for one in toy_examples(settings, tokenizer, seed, count)]
        for seed, count in ((data.toy_seed, data.toy_count), (HELD_OUT, 8))
    )
    longest = max(held_out) - 1
    longer = [sum(length > longest for length in lengths) for lengths in (train, held_out)]
    read_data(changed(settings, data={"held_out": 8, "lengths": (longest,)}), tokenizer)
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(f": {len(train)} records, {longer[0]} too long for {longest} tokens")
    assert said[1:] == [f"held out: 8 records, {longer[1]} too long"]
    for length, split in ((8, "64 training"), (held_out[0] - 1, "1 held-out")):
        with pytest.raises(PastaError, match=f"none of {split} records fits into {length} tokens"):
            read_data(changed(settings, data={"held_out": 1, "lengths": (length,)}), tokenizer)
