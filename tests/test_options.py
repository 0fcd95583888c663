"""Every option is honoured or refused. The lists are compared with the signatures: an option without an entry fails here."""
import inspect
import types

import mlx.core as mx
import numpy as np
import pytest
import specdecode_nb
from specdecode_nb import cli, decoder, exact, lora
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import NgramDrafter, RandomDrafter, UnoDrafter, load_drafter
from specdecode_nb.errors import BadInput
from specdecode_nb.policies import Fixed
from specdecode_nb.sampling import Sampling
from specdecode_nb.staged import Staged, Truncated
from specdecode_nb.targets import load_target
from toy import PROMPT, ScriptedDrafter, adapter, hybrid, plain, scripted

TEXT = "abcdefghijklmnopqrstuvwxyz0123456789"


class Spy(NgramDrafter):
    """Notes what it is asked for."""

    def __init__(self):
        super().__init__(1)
        self.asked = []

    def draft(self, cache, history, k, cycle):
        self.asked.append(k)
        return super().draft(cache, history, k, cycle)


@pytest.fixture(params=[generate, stream])
def call(request):
    """generate or stream on the hybrid toy, with its result in one form."""

    def run(target=None, prompt=PROMPT, **options):
        target = target or hybrid()
        options = {"max_tokens": 8, "session": Session(target)} | options
        made = request.param(target, prompt, **options)
        if request.param is generate:
            return types.SimpleNamespace(tokens=made.tokens, text=made.text, logprobs=made.logprobs, session=made.session)
        events = list(made)
        scores = [e.logprob for e in events]
        return types.SimpleNamespace(tokens=[e.token for e in events], text="".join(e.text for e in events), session=options["session"],
                                     logprobs=None if None in scores else scores)

    return run


def follows(text, call, **options):
    """A call on a target that follows ``text``."""
    target, prompt, ids = scripted(text)
    return call(target, prompt, **{"max_tokens": len(ids)} | options)


def honours_k(call, patch):
    spy = Spy()
    call(drafter=spy, k=3)
    wide = Spy()
    call(drafter=wide, k=Fixed(2))
    return spy.asked[0] == 3 and wide.asked[0] == 2


def honours_scheme(call, patch):
    seen, real = [], decoder.Transaction
    patch.setattr(decoder, "Transaction", lambda cache, scheme, **options: seen.append(scheme) or real(cache, scheme, **options))
    drafter = ScriptedDrafter(hybrid(), plain(hybrid()), len(PROMPT), (1,), "lookup")
    texts = [call(drafter=drafter, scheme=scheme, ignore_eos=True).tokens for scheme in ("tape", "per_token_states", "replay", "rewind")]
    return list(dict.fromkeys(seen)) == ["tape", "per_token_states", "replay", "rewind"] and texts == [plain(hybrid())[:8]] * 4


def honours_session(call, patch):
    session = call(ignore_eos=True).session
    again = call(prompt=[65], session=session, ignore_eos=True)
    return again.tokens == plain(hybrid(), [*PROMPT, *plain(hybrid())[:8], 65], 8) and again.session is session


def honours_drafter(call, patch):
    spy = Spy()
    return call(drafter=spy, ignore_eos=True).tokens == call(drafter=None, ignore_eos=True).tokens and spy.asked


def honours_exact(call, patch):
    seen, real = [], exact.rounds
    patch.setattr(exact, "rounds", lambda run: seen.append(run.exact) or real(run))
    tokens = [call(drafter=d, exact=e, ignore_eos=True).tokens for d in (None, Spy()) for e in (True, False)]
    return seen == [True, True] and tokens[0] == tokens[2]


HONOURED = {
    "target": lambda call, patch: call(hybrid(), ignore_eos=True).tokens != call(hybrid(seed=1, value_heads=2), ignore_eos=True).tokens,
    "prompt": lambda call, patch: call(prompt="ab").tokens == call(prompt=[97, 98]).tokens != call(prompt="ac").tokens,
    "drafter": honours_drafter,
    "k": honours_k,
    "max_tokens": lambda call, patch: [len(call(max_tokens=n, ignore_eos=True).tokens) for n in (0, 1, 7)] == [0, 1, 7],
    "temperature": lambda call, patch: (call(temperature=0, ignore_eos=True).tokens == call(temperature=0.0, ignore_eos=True).tokens == plain(hybrid())[:8]
                                        != call(temperature=2.0, ignore_eos=True).tokens),
    "seed": lambda call, patch: (call(seed=1, temperature=2.0, ignore_eos=True).tokens == call(seed=1, temperature=2.0, ignore_eos=True).tokens
                                 != call(seed=2, temperature=2.0, ignore_eos=True).tokens),
    "sampling": lambda call, patch: (call(sampling=Sampling(2.0), ignore_eos=True).tokens == call(temperature=2.0, ignore_eos=True).tokens
                                     and call(sampling=Sampling(2.0, top_k=1), ignore_eos=True).tokens == plain(hybrid())[:8]),
    "stop": lambda call, patch: follows(TEXT, call, stop="def").text == "abc" and follows(TEXT, call, stop=["xy", "c"]).text == "ab",
    "ignore_eos": lambda call, patch: [len(follows([97, 0, 98], call, ignore_eos=i).tokens) for i in (True, False)] == [3, 2],
    "scheme": honours_scheme,
    "session": honours_session,
    "exact": honours_exact,
    "logprobs": lambda call, patch: call().logprobs is None and len(call(logprobs=True, ignore_eos=True).logprobs) == 8,
}
REFUSED = {
    "target": (["tiny-hybrid", None, 3], "The target is .*load it with load_target"),
    "prompt": (["", [], [5, 256], [-1], None, 5, [1.0], [True], b"ab", np.array([1, 2])], "prompt"),
    "drafter": (["uno", 4, object], "The drafter is .*load_drafter"),
    "k": ([0, -3, 1.5, "4", None, True, float("nan"), 5000], "k is .*give|k=5000"),
    "max_tokens": ([-1, 2.5, "8", None, True, 5000], "max_tokens is .*give|do not fit"),
    "temperature": ([-1, float("nan"), float("inf"), "0", None], "temperature is .*give"),
    "seed": ([1.5, "0", None], "seed is .*give"),
    "stop": (["", ["a", ""], 3, None, (1,), b"a"], "stop is .*give"),
    "ignore_eos": ([1, 0, "no", None], "ignore_eos is .*give True or False"),
    "scheme": (["snapshot", "", None, 3, ["tape"]], "no scheme"),
    "exact": ([1, "yes", None], "exact is .*give True or False"),
    "sampling": ([0.7, "gumbel", {}], "sampling is .*give a Sampling"),
    "session": (["mine", 3, []], "The session is .*give a Session"),
    "logprobs": ([1, "yes", None], "logprobs is .*give True or False"),
}


def options_of(function, *apart) -> set:
    return set(inspect.signature(function).parameters) - {"self", *apart}


def test_every_option_of_decoding_is_here():
    assert options_of(generate) == options_of(stream) == set(HONOURED) == set(REFUSED)


@pytest.mark.parametrize("option", HONOURED)
def test_honoured(option, call, monkeypatch):
    assert HONOURED[option](call, monkeypatch)


@pytest.mark.parametrize("function", [generate, stream])
@pytest.mark.parametrize("option, value", [(o, v) for o, (values, _) in REFUSED.items() for v in values], ids=str)
def test_refused(option, value, function):
    """One sentence that names the value and the remedy, before the target is called; a stream refuses when it is made."""
    target, prompt, _ = scripted(TEXT)
    options = {"target": target, "prompt": prompt, "drafter": NgramDrafter()} | {option: value}
    with pytest.raises(BadInput, match=REFUSED[option][1]) as caught:
        function(**options)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and ". " not in text and target.model.calls == 0


# loading

@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The adapter of another toy, so that taking it needs ``foreign``."""
    path = tmp_path_factory.mktemp("adapters") / "mine.safetensors"
    adapted, _ = adapter(hybrid())
    lora.save_adapter(path, adapted, {"scale": 16.0, "target_digest": "0" * 64})
    return str(path)


def load(file, **options):
    return load_drafter(file, hybrid(), foreign=True, **options)


def drafted(drafter, k=4):
    return drafter.draft(Session(hybrid()).cache, [9], k, 1)


LOADED = {
    "name": lambda f: load_drafter("random", hybrid()).name == "random" and load_drafter(None, hybrid()) is None,
    "target": lambda f: load(f).target is hybrid(),
    "foreign": lambda f: load(f).metadata["foreign"] is True,
    "keep_seed": lambda f: [drafted(d).seed_kept for d in (load(f), load(f, keep_seed=False))] == [True, False],
    "noise_seed": lambda f: drafted(load(f, noise_seed=3), 16).tokens != drafted(load(f), 16).tokens,
    "scheme": lambda f: load(f, scheme="per_token_states").scheme == "per_token_states",
    "passes": lambda f: drafted(load(f, passes=3)).forwards == 3,
    "confidence": lambda f: len(drafted(load(f, confidence=True)).confidence) == 3,
    "order": lambda f: load_drafter("ngram", hybrid(), order=3).draft([], [1, 2, 3, 4, 1, 2, 3], 2, 1).tokens == [4],
    "seed": lambda f: load_drafter("random", hybrid(), seed=4).draft([], [1], 9, 1).tokens != load_drafter("random", hybrid()).draft([], [1], 9, 1).tokens,
}
NOT_LOADED = {
    "name": ([3, "", "unno", b"uno"], "drafter"), "target": (["tiny-hybrid", None], "The target is"),
    "foreign": (["yes", 1, None], "foreign is .*True or False"),
    "keep_seed": ([1, "no", None], "keep_seed is .*True or False"), "noise_seed": ([1.5, "3", None, True], "noise_seed is"),
    "scheme": (["replay", "rewind", None, 3], "no scheme"), "passes": ([0, 1.5, "2", True], "passes is"),
    "confidence": ([1, "yes"], "confidence is .*True or False"),
    "order": ([0, "2", None, True], "order is"), "seed": ([None, 1.5, "0"], "seed is"), "size": ([2], "does not take these options"),
}
OF_A_LOOKUP, OF_A_DRAW = ("order",), ("seed",)


def test_every_option_of_loading_is_here():
    own = (options_of(UnoDrafter.__init__, "target", "model", "gate", "name", "metadata") | options_of(NgramDrafter.__init__)
           | options_of(RandomDrafter.__init__, "vocab"))
    assert own | options_of(load_drafter, "options") == set(LOADED) == set(NOT_LOADED) - {"size"}
    assert options_of(load_target) == {"name", "dtype", "download", "revision"}  # the last two: tests/test_hub.py
    assert options_of(Staged.__init__) == options_of(Truncated.__init__) == {"drafter", "verify"}


@pytest.mark.parametrize("option", LOADED)
def test_an_option_of_a_drafter_is_honoured(option, file):
    assert LOADED[option](file)


@pytest.mark.parametrize("option, value", [(o, v) for o, (values, _) in NOT_LOADED.items() for v in values], ids=str)
def test_an_option_of_a_drafter_is_refused(option, value, file):
    name = "ngram" if option in OF_A_LOOKUP else "random" if option in OF_A_DRAW else file
    with pytest.raises(BadInput, match=NOT_LOADED[option][1]):
        load_drafter(**{"name": name, "target": hybrid(), "foreign": True} | {option: value})


def test_a_drafter_of_another_target_needs_the_option(file):
    with pytest.raises(BadInput, match="trained for another target"):
        load_drafter(file, hybrid())


@pytest.mark.parametrize("options, says", [
    ({"name": "tiny-hybird"}, "did you mean 'tiny-hybrid'"), ({"name": 3}, "give a name or a folder"), ({"name": None}, "give a name or a folder"),
    ({"dtype": "float16"}, "choose float32 or bfloat16"), ({"dtype": ""}, "choose float32"), ({"dtype": 0}, "float32 or bfloat16"),
    ({"dtype": ["float32"]}, "float32 or bfloat16"), ({"dtype": False}, "float32 or bfloat16")])
def test_an_option_of_a_target_is_refused(options, says):
    with pytest.raises(BadInput, match=says):
        load_target(**options)


def test_the_type_of_a_target_is_honoured():
    wide, narrow = load_target(), load_target(dtype="bfloat16")
    assert (wide.dtype, narrow.dtype) == ("float32", "bfloat16") and wide.name == narrow.name == "tiny-hybrid"
    assert [t.model(mx.array([[5, 6]]), cache=t.make_cache()).dtype for t in (wide, narrow)] == [mx.float32, mx.bfloat16]  # it computes so, too
    assert narrow.model.language_model.model.embed_tokens.weight.dtype == mx.bfloat16 and load_target(dtype=None).digest() == wide.digest()


# the command

WORDS = {"prompt": ["ab"], "target": ["--target", "mine"], "drafter": ["--drafter", "random"], "k": ["-k", "3"], "max_tokens": ["--max-tokens", "5"],
         "temperature": ["--temperature", "0.8"], "exact": ["--exact"], "dtype": ["--dtype", "bfloat16"],
         "download": ["--download"], "revision": ["--revision", "abc"], "seed": ["--seed", "7"], "stop": ["--stop", "x", "--stop", "yz"],
         "top_k": ["--top-k", "9"], "top_p": ["--top-p", "0.9"], "min_p": ["--min-p", "0.01"], "rule": ["--rule", "match"],
         "repetition_penalty": ["--repetition-penalty", "1.1"], "presence_penalty": ["--presence-penalty", "0.2"],
         "frequency_penalty": ["--frequency-penalty", "0.3"]}
DRAWN = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "rule": "match", "repetition_penalty": 1.1, "presence_penalty": 0.2,
         "frequency_penalty": 0.3}
GIVEN = {"prompt": "ab", "target": "mine", "dtype": "bfloat16", "download": True, "revision": "abc", "drafter": "random", "k": 3, "max_tokens": 5, "seed": 7, "stop": ["x", "yz"], "exact": True,
         "sampling": Sampling(**DRAWN)}
BAD = {"prompt": [[""], [" "], ["a\udcffb"]], "target": [["--target", "nowhere"], ["--target"]], "drafter": [["--drafter", "unno"]],
       "k": [["-k", "0"], ["-k", "four"], ["-k", "1.5"]], "max_tokens": [["--max-tokens", "-1"], ["--max-tokens", "many"], ["--max-tokens", "99999"]],
       "temperature": [["--temperature", "nan"], ["--temperature", "-1"], ["--temperature", "warm"]], "seed": [["--seed", "x"], ["--seed", "1.5"]],
       "dtype": [["--dtype", "float16"]], "download": [["--download=yes"]], "revision": [["--revision"]], "exact": [["--exact=yes"]], "stop": [["--stop", ""], ["--stop"]], "top_k": [["--top-k", "-1"], ["--top-k", "1.5"]],
       "top_p": [["--top-p", "0"], ["--top-p", "1.5"]],
       "min_p": [["--min-p", "-1"], ["--min-p", "nan"]], "rule": [["--rule", "luck"]], "repetition_penalty": [["--repetition-penalty", "0"]],
       "presence_penalty": [["--presence-penalty", "inf"]], "frequency_penalty": [["--frequency-penalty", "often"]]}


def command(*words):
    return cli.main(["generate", *words])


def test_every_option_of_the_command_is_here():
    actions = cli.parser()._subparsers._group_actions[0].choices["generate"]._actions
    assert {a.dest for a in actions} - {"help"} == set(WORDS) == set(GIVEN) - {"sampling"} | set(DRAWN) == set(BAD)


def test_every_option_of_the_command_reaches_the_decoder(monkeypatch, capsys):
    seen = {}
    real = specdecode_nb.generate

    def watched(target, prompt, **options):
        seen.update(options, prompt=prompt, drafter=options["drafter"].name)
        return real(target, prompt, **options)

    def given(name, dtype, download, revision):
        seen.update(target=name, dtype=dtype, download=download, revision=revision)
        return hybrid()

    monkeypatch.setattr(specdecode_nb, "load_target", given, raising=False)
    monkeypatch.setattr(specdecode_nb, "generate", watched, raising=False)
    assert command(*(word for words in WORDS.values() for word in words)) == 0
    assert {name: seen[name] for name in GIVEN} == GIVEN
    assert "random, k=3" in capsys.readouterr().out


@pytest.mark.parametrize("option, words", [(o, w) for o, cases in BAD.items() for w in cases], ids=ascii)
def test_a_bad_option_of_the_command_is_one_sentence_and_status_2(option, words, monkeypatch, capsys):
    real = specdecode_nb.load_target
    monkeypatch.setattr(specdecode_nb, "load_target", lambda name, *more: hybrid() if (name, more[0]) == ("tiny-hybrid", None) else real(name, *more), raising=False)
    assert command(*([] if option == "prompt" else ["ab", "--drafter", "ngram"]), *words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("specdecode-nb: ") and captured.err.count("\n") == 1
