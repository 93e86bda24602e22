"""Real transformers: a model that we export for Hugging Face is loaded by from_pretrained, bit for bit."""

from pathlib import Path

import pytest
import torch

import everstep
from everstep.cli.held import held
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.depart.depart import depart
from tests.peers.worlds import needs
from tests.unit.foreign.programs import differing

pytestmark = needs("transformers")


@pytest.mark.timeout(600)
def test_from_pretrained_loads_the_export_and_its_own_save_is_imported(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_positions=16, n_embd=12, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        tokens = torch.arange(16)[None]
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        run.commit()
        run.wait(timeout=60)
    depart(held(str(tmp_path / "run"), None), str(tmp_path / "hf"), "hf", shard_bytes=8000)
    config.save_pretrained(tmp_path / "hf")
    loaded, said = GPT2LMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    assert differing(dict(loaded.state_dict()), dict(model.state_dict())) == []

    model.save_pretrained(tmp_path / "theirs", max_shard_size=8000)
    arrive(str(tmp_path / "theirs"), str(tmp_path / "back"), wishes(ties=("lm_head.weight=transformer.wte.weight",)))
    fresh = GPT2LMHeadModel(config)
    settings = everstep.Settings(unmatched="keep")
    with everstep.open(
        tmp_path / "back", model=fresh, optimizer=torch.optim.AdamW(fresh.parameters()), settings=settings
    ) as run:
        run.resume()
    assert differing(dict(fresh.state_dict()), dict(model.state_dict())) == []
