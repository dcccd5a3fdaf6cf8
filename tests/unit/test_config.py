import copy
from pathlib import Path

import pytest

from workflow_scripts import config as configuration
from workflow_scripts import config_reference
from workflow_scripts.failures import InvalidInput

CONFIG = Path(__file__).parents[2] / "config"
DEFAULTS = configuration.read_yaml(CONFIG / "config.yaml")
MODELS = configuration.read_yaml(CONFIG / "models.yaml")


def load(**changes):
    return configuration.load({**copy.deepcopy(DEFAULTS), **changes}, MODELS)


def test_every_default_row_is_valid():
    config = load()
    for name in config.models:
        assert config.world_row(name).family
    for name in config.planners:
        assert config.planner_row(name).track
    assert config.setting_row("fullhist").history == 3


def test_defaults_in_the_file_are_those_of_the_models():
    bare = configuration.load({}, {})
    given = load()
    for key in type(given).model_fields:
        if key not in ("models", "settings", "planners", "judges", "slurm"):  # blocks that the file fills in
            assert getattr(given, key) == getattr(bare, key), key


def test_schema_and_reference_page_are_up_to_date():
    assert (CONFIG / "schemas/config.schema.json").read_bytes() == configuration.schema_bytes(), (
        "run: python -m workflow_scripts.config"
    )
    assert config_reference.PAGE.read_bytes() == config_reference.page(), (
        "run: python -m workflow_scripts.config_reference"
    )


def test_lists_from_the_command_line():
    assert load(model="browser, blank").model == ["browser", "blank"]
    assert load(model=["browser", "blank"]).model == ["browser", "blank"]
    assert load(task_ids=1).task_ids == ["1"]
    assert load(task_ids="001,b").task_ids == ["001", "b"]


def test_own_rows_extend_and_change_the_defaults():
    config = load(models={"mine": {"family": "blank", "color": "#000000"}, "blank": {"color": "#ff0000"}})
    assert config.world_row("mine").color == "#000000"
    assert config.world_row("blank").color == "#ff0000"


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"subest": 3}, "subest", "subset: 3"),
        ({"tasks_in_flight": "ten"}, "tasks_in_flight", "tasks_in_flight: 8"),
        ({"subset": True}, "subset", "subset: null"),
        ({"shard": "9/8"}, "shard", "shard: null"),
        ({"model": "a,a"}, "model", "model: a"),
        ({"model": ""}, "model", 'model: ["browser"]'),
        ({"settings": {"nohist": {"history": -1}}}, "settings.nohist.history", "history: 0"),
        ({"settings": {"no-hist": {}}}, "settings.no-hist", "no_hist: …"),
        ({"planners": {"openai": {"kind": "openai", "temprature": 1}}}, "planners.openai.temprature", "temperature: 1"),
        ({"planners": {"x": {"kind": "opnai"}}}, "planners.x.kind", "kind: openai"),
        ({"models": {"x": 3}}, "models.x", "x: {family: html}"),
    ],
)
def test_a_fault_names_its_key_and_shows_the_line(changes, key, fix):
    with pytest.raises(InvalidInput) as caught:
        load(**changes)
    assert (caught.value.key, caught.value.fix) == (key, fix)


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"model": "brwser"}, "model", "model: browser"),
        ({"models": {"x": {"family": "blnk"}}, "model": "x"}, "models.x.family", "family: blank"),
        ({"models": {"blank": {"color": "red"}}, "model": "blank"}, "models.blank.color", 'color: "#ffffff"'),
        ({"models": {"blank": {"colour": "#000000"}}, "model": "blank"}, "models.blank.colour", 'color: "#000000"'),
    ],
)
def test_a_fault_in_a_row_is_found_when_the_row_is_used(changes, key, fix):
    config = load(**changes)
    with pytest.raises(InvalidInput) as caught:
        config.world_row(config.model[0])
    assert (caught.value.key, caught.value.fix) == (key, fix)


def test_a_tab_is_named_with_its_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: browser\nsettings:\n\tnohist: {history: 0}\n")
    with pytest.raises(InvalidInput) as caught:
        configuration.read_yaml(path)
    assert caught.value.where == f"{path}:3"
    assert caught.value.fix == "  nohist: {history: 0}"
