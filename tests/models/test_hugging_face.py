"""Classifiers of Hugging Face: what the library alone answers, and no answer where it would be made up."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from hugging_face import NAMES, SPECIAL, WORDS, classifier, logits, sentences, table, tokenizer, transformers

from calib_serve.core.errors import ModelError
from calib_serve.models import load_model
from calib_serve.models.load import model_data


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    classifier(folder)
    return folder


@pytest.fixture
def copied(bert, tmp_path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "model"))


def configured(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def loaded(folder: Path, texts: list[str], **options):
    data = table(folder.parent / "texts.jsonl", texts, [NAMES[i % 3] for i in range(len(texts))])
    (given,) = model_data(folder, data, [None])
    return given, load_model(folder, input_shape=given.inputs.shape[1:], device="cpu", **options)


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("Bert", "classifier"),
        ("Roberta", "classifier.out_proj"),
        ("GPT2", "score"),
    ],
)
def test_logits_are_the_librarys_own_alone_and_in_padded_batches(tmp_path, kind, layer) -> None:
    classifier(tmp_path, kind)
    texts = sentences(60)
    given, model = loaded(tmp_path, texts, batch_size=7)
    z = model.logits(given.inputs)
    assert np.ptp(z, axis=0).min() > 0.1, "a model that answers all texts alike proves nothing"
    scale = np.abs(z).max()
    np.testing.assert_allclose(z, logits(tmp_path, texts), atol=1e-5 * scale)
    np.testing.assert_allclose(z, logits(tmp_path, texts, at_once=16), atol=1e-5 * scale)
    np.testing.assert_allclose(model.head(model.features(given.inputs)), z, atol=1e-4 * scale)
    facts = model.facts()
    assert (facts.last_linear, facts.outputs, facts.input_shape) == (layer, "logits", None)
    assert len(facts.sha256 or "") == 64
    assert given.class_names == NAMES


def test_a_model_whose_answers_padding_changes_is_refused(tmp_path) -> None:
    classifier(tmp_path, "FNet")  # it mixes all positions and knows no mask
    with pytest.raises(ModelError, match="padding on the right changes"):
        loaded(tmp_path, sentences(3))


def test_types_of_tokens_that_the_model_does_not_know_are_not_made_up(tmp_path) -> None:
    """A tokenizer may make types that are all 0, of which the model has no other."""
    classifier(tmp_path, type_vocab_size=1)
    texts = sentences(6)
    given, model = loaded(tmp_path, texts)
    np.testing.assert_allclose(model.logits(given.inputs), logits(tmp_path, texts), atol=1e-4)


def test_a_text_may_be_as_long_as_tokenizer_and_model_take(bert, tmp_path) -> None:
    assert load_model(bert, device="cpu").input_shape == (2, 24)
    classifier(tmp_path, "Llama", num_key_value_heads=2, max_position_embeddings=17)
    tokenizer(tmp_path, types=False, padding_side="left")
    assert load_model(tmp_path, device="cpu").input_shape[1] == 17


def test_pairs_of_texts_are_one_input_each(bert, tmp_path) -> None:
    texts, pairs = sentences(20), sentences(20, seed=1)
    data = table(tmp_path / "pairs.csv", texts, [0, 1] * 10, text_pair=pairs)
    (given,) = model_data(bert, data, [None])
    model = load_model(bert, input_shape=given.inputs.shape[1:], device="cpu", batch_size=6)
    np.testing.assert_allclose(model.logits(given.inputs), logits(bert, texts, pairs), atol=1e-5)


def test_padding_on_the_left_is_as_good_where_the_model_is_made_for_it(copied, tmp_path) -> None:
    classifier(tmp_path, "Llama", num_key_value_heads=2)
    for folder in (tmp_path, copied):
        tokenizer(folder, types=False, model_max_length=24, padding_side="left")
    texts = sentences(20)
    given, model = loaded(tmp_path, texts, batch_size=6)
    assert (given.inputs[:, 0, 0] == -1).any()
    np.testing.assert_allclose(model.logits(given.inputs), logits(tmp_path, texts), atol=1e-3)
    with pytest.raises(ModelError, match="padding on the left changes"):
        loaded(copied, texts)  # BERT counts positions from the left


def test_truncated_texts_are_counted_and_said(bert, tmp_path) -> None:
    texts = [*sentences(5), " ".join(WORDS * 4), " ".join(WORDS * 400)]
    data = table(tmp_path / "x.jsonl", texts, list(range(3)) * 2 + [0])
    (given,) = model_data(bert, data, [None])
    assert given.remarks[0].startswith("2 of 7 texts were truncated to the model's 24 tokens")
    assert given.inputs.shape[2] == 24
    model = load_model(bert, input_shape=given.inputs.shape[1:], device="cpu")
    np.testing.assert_allclose(model.logits(given.inputs), logits(bert, texts), atol=1e-4)


def test_nothing_is_asked_of_the_network_and_nothing_is_printed(bert, monkeypatch, capfd) -> None:
    def refuse(*args) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    given, model = loaded(bert, [" ".join(WORDS * 9), "good film"])
    model.logits(given.inputs)
    assert capfd.readouterr() == ("", "")


def test_several_labels_are_read_by_name_or_id(copied, tmp_path) -> None:
    configured(copied, problem_type="multi_label_classification")
    data = table(tmp_path / "x.jsonl", sentences(4), [["praise", "shrug"], [], "1", "blame; 0"])
    (given,) = model_data(copied, data, [None])
    assert given.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 0]]
    model = load_model(copied, input_shape=given.inputs.shape[1:], device="cpu")
    assert model.outputs == "label_logits"
    with pytest.raises(ModelError, match="multi_label"):
        load_model(copied, input_shape=given.inputs.shape[1:], outputs="logits")


# --- what is refused -------------------------------------------------------------------------------


def test_a_head_that_would_be_random_is_refused(copied) -> None:
    found = transformers()
    bare = found.BertModel(found.AutoConfig.from_pretrained(copied))
    bare.save_pretrained(copied / "bare")
    shutil.copy(copied / "bare" / "model.safetensors", copied)  # the weights of a body, and no head's
    with pytest.raises(ModelError, match=r"lack 2 tensors .* classifier\.bias, classifier\.weight"):
        load_model(copied, input_shape=(2, 5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "random weights"),
        ({"architectures": None}, "of an unknown architecture"),
        ({"architectures": ["RobertaForSequenceClassification"]}, "was loaded as"),
        ({"problem_type": "regression"}, "regression"),
        ({"id2label": {"0": "x", "2": "y"}, "label2id": {"x": 0, "y": 2}}, "id2label"),
        ({"auto_map": {"AutoModelForSequenceClassification": "code.Net"}}, "code of its own"),
    ],
)
def test_a_configuration_that_is_no_classifiers_is_refused(copied, changes, said) -> None:
    (copied / "code.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ModelError, match=said):
        load_model(configured(copied, **changes), input_shape=(2, 5))


def test_pickled_weights_are_refused(copied) -> None:
    import torch

    weights = copied / "model.safetensors"
    torch.save({"x": torch.zeros(1)}, copied / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelError, match=r"pytorch_model\.bin, which is never unpickled"):
        load_model(copied, input_shape=(2, 5))


def test_an_adapter_beside_the_weights_is_refused(copied) -> None:
    (copied / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="merge it"):
        load_model(copied, input_shape=(2, 5))


def test_a_tokenizer_that_the_library_makes_up_is_refused(copied) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (copied / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="knows no words"):
        load_model(copied, input_shape=(2, 5))


def test_another_models_tokenizer_is_refused(copied) -> None:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS, "new", "words"])}
    transformers().BertTokenizer(vocab=vocabulary).save_pretrained(copied)
    with pytest.raises(ModelError, match="not this model's"):
        load_model(copied, input_shape=(2, 5))


def test_a_model_of_one_score_is_binary_where_that_is_said_and_else_a_regression(tmp_path) -> None:
    classifier(tmp_path / "model", names=("LABEL_0",))
    folder = configured(tmp_path / "model")
    data = table(tmp_path / "texts.jsonl", texts := sentences(8), [str(i % 2) for i in range(8)])
    (given,) = model_data(folder, data, [None], outputs="logit")
    model = load_model(folder, input_shape=given.inputs.shape[1:], device="cpu", outputs="logit")
    assert (model.outputs, model.classes, given.labels.tolist()) == ("logit", 2, [0, 1] * 4)
    own = logits(folder, texts)
    np.testing.assert_allclose(model.logits(given.inputs), np.hstack([0 * own, own]), atol=1e-4)
    with pytest.raises(ModelError, match=r"regression.*--outputs logit"):
        load_model(folder, input_shape=(2, 5))
    with pytest.raises(ModelError, match="regression"):
        load_model(configured(folder, problem_type="regression"), input_shape=(2, 5), outputs="logit")
