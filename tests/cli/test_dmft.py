"""``mssp dmft`` as a person would call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mssp.cli import main

TINY = ["--inputs", "2", "--steps", "4", "--samples", "400", "--solves", "2", "--device", "cpu"]
NETWORKS = ["--compare", "8", "16", "--seeds", "4"]
SHAPE = {"width": 16, "expert-width": 2, "experts": 8, "active": 8, "depth": 1, "inputs": 5}
PLAN = ["plan", "--optimizer", "sgd", "--regime", "II", "--lr", "0.4", "--json"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["dmft", *TINY, *arguments, "--json"]) == 0
    limit = json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert isinstance(limit, dict)
    return limit


def plan_file(arguments: list[str], capsys: pytest.CaptureFixture[str], **sizes: int) -> Path:
    shape = [word for name, size in {**SHAPE, **sizes}.items() for word in (f"--target.{name}", str(size))]
    assert main([*PLAN, *shape, *arguments]) == 0
    file = Path("plan.json")
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def shape_of(nested: Any) -> list[int]:
    return [len(nested), *shape_of(nested[0])] if isinstance(nested, list) else []


def test_a_table(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert main(["dmft", *TINY]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "the limit of mssp in regime II: M/N = 0.5, N_e = 2, tanh, sigmoid gates, inputs 2, lr 0.4"
    assert " ".join(lines[2].split()) == "step loss f of the first tr Φ¹ tr Φ³ tr G¹ var ψ"
    assert [line.split()[0] for line in lines[4:9]] == ["0", "1", "2", "3", "4"]
    # Before the first update f is 0, and the loss is half the mean square of the targets.
    assert lines[4].split()[1:7] == ["0.4055", "±", "0.0000", "0.0000", "±", "0.0000"]
    assert "2 independent solutions" in lines[9]
    assert "nan" not in printed.out
    assert printed.err == ""
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "heading", "router"),
    [
        (["--regime", "I"], "mssp in regime I: M = 4, N_e/N = 0.5, tanh, sigmoid gates", "mean ψ"),
        (["--regime", "III"], "mssp in regime III: M/N = 0.5, N_e/N = 0.5, tanh, sigmoid gates", "var ψ"),
        (["--regime", "I", "--gate", "softmax"], "mssp in regime I: M = 4, N_e/N = 0.5, tanh, softmax gates", "mean ψ"),
        (["--activation", "gelu", "--experts", "4"], "mssp in regime II: M/N = 0.25, N_e = 2, gelu, sigmoid", "var ψ"),
        (["--width", "32", "--active", "4"], "mssp in regime II: M/N = 0.25, N_e = 2, tanh, sigmoid gates", "var ψ"),
        (["--expert-width", "3", "--lr", "0.1"], "mssp in regime II: M/N = 0.5, N_e = 3, tanh, sigmoid", "var ψ"),
    ],
)
def test_other_limits(arguments: list[str], heading: str, router: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmft", *TINY, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"the limit of {heading}")
    assert lines[2].endswith(router)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    limit = as_json([], capsys)
    assert (limit["regime"], limit["scheme"], limit["inputs"], limit["steps"]) == ("II", "mssp", 2, 4)
    assert (limit["test_inputs"], limit["solves"]) == (0, 2)
    assert limit["loss"][0] == pytest.approx(0.405495, abs=1e-6)
    assert limit["loss"] == sorted(limit["loss"], reverse=True)
    assert limit["loss_error"][0] == pytest.approx(0, abs=1e-12)
    assert limit["loss_error"][4] > 0
    assert (shape_of(limit["loss"]), shape_of(limit["loss_error"]), shape_of(limit["f"])) == ([5], [5], [5, 2])
    assert limit["f"][0] == [0.0, 0.0]
    kernels = limit["kernels"]
    assert shape_of(kernels["phi1"]) == shape_of(kernels["phi3"]) == shape_of(kernels["g1"]) == [5, 2, 2]
    assert shape_of(kernels["g3"]) == [5]
    assert {name: shape_of(rows) for name, rows in kernels["router"].items()} == {"mean": [5, 2], "variance": [5, 2]}
    assert kernels["g1"][0] == [[0.0, 0.0], [0.0, 0.0]]
    assert kernels["phi1"][4][0][1] == pytest.approx(kernels["phi1"][4][1][0])
    assert "finite" not in limit
    assert "exponent" not in limit


def test_json_with_networks(capsys: pytest.CaptureFixture[str]) -> None:
    limit = as_json(["--test-inputs", "1", *NETWORKS], capsys)
    assert (limit["inputs"], limit["test_inputs"], shape_of(limit["f"])) == (2, 1, [5, 3])
    assert shape_of(limit["kernels"]["phi3"]) == [5, 3, 3]
    assert {width: network["seeds"] for width, network in limit["finite"].items()} == {"8": 8, "16": 4}
    for network in limit["finite"].values():
        assert shape_of(network["loss"]) == [5]
        assert network["loss"][0] == pytest.approx(0.405495, abs=1e-6)
        for name in ("f", "phi1", "phi3", "g1"):
            assert network["deviation"][name] > 0
            assert network["error"][name] > 0
    # Four networks are too few for an exponent: null, no NaN.
    assert [limit["exponent"][name] for name in ("f", "phi1", "phi3", "g1")] == [None] * 4
    assert limit["verdict"].startswith("unclear: the bias is hidden in the noise of these seeds; at N = 16 ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--solves", "1", *NETWORKS],
        ["--compare", "8", "16", "--seeds", "1"],
        ["--scheme", "mup", "--readout", "zero", *NETWORKS],
    ],
    ids=["one solution", "one network", "a trivial limit"],
)
def test_what_is_not_known_is_null(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    limit = as_json(arguments, capsys)
    if "1" in arguments[:2]:
        assert limit["loss_error"] == [None] * 5
    assert not any(limit["exponent"].values())


def test_one_seed_gives_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (as_json(["--seed", "7", *NETWORKS], capsys) for _ in range(2))
    assert first.pop("made_with")["mssp"] == second.pop("made_with")["mssp"]
    assert first == second
    assert as_json(["--seed", "8"], capsys)["loss"][0] != pytest.approx(as_json(["--seed", "7"], capsys)["loss"][0])


def test_constants_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    plain = as_json([], capsys)["kernels"]
    faster = as_json(["--rates", "readout=3", "embedding=1"], capsys)["kernels"]
    assert faster["g3"][1] == pytest.approx(9 * plain["g3"][1])
    wider = as_json(["--stds", "router=2"], capsys)["kernels"]
    assert wider["router"]["variance"][0] == pytest.approx([4 * size for size in plain["router"]["variance"][0]])


def test_networks_beside_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmft", *TINY, *NETWORKS]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    table = lines[
        lines.index("networks of finite width: deviation of their mean, ± what the noise of few seeds would be") :
    ]
    assert table[1].split()[:6] == ["width", "seeds", "f", "Φ¹", "Φ³", "G¹"]
    assert [line.split()[:2] for line in table[3:5]] == [["8", "8"], ["16", "4"]]
    assert table[5].split()[:3] == ["exponent", "of", "N"]
    assert any(line.startswith("unclear: the bias is hidden in the noise of these seeds") for line in table)
    assert "nan" not in out


def test_networks_that_converge(capsys: pytest.CaptureFixture[str]) -> None:
    # muP in Regime II loses the initial experts' outputs as 1/M, far beyond the noise.
    mup = ["--scheme", "mup", "--compare", "8", "16", "32", "--seeds", "40", "--samples", "4000"]
    limit = as_json(mup, capsys)
    assert limit["verdict"].startswith("converges: the bias falls as N^−")
    assert limit["exponent"]["phi3"] == pytest.approx(-1.0, abs=0.3)
    assert 0 < limit["exponent_ci"]["phi3"] < 0.5


def test_a_trivial_limit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dmft", *TINY, "--scheme", "mup", "--readout", "zero"]) == 0
    out = capsys.readouterr().out
    assert (
        "note: the limit is trivial: under mup in regime II a zero readout has nothing to start from, and f stays 0"
        in out
    )


@pytest.mark.parametrize("networks", [[], NETWORKS], ids=["limit", "networks"])
def test_a_figure(networks: list[str], capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert main(["dmft", *TINY, *networks, "--plot", "limit.html"]) == 0
    assert capsys.readouterr().err == "figure in limit.html\n"
    assert "<title>" in (elsewhere / "limit.html").read_text(encoding="utf-8")[:2000]
    assert [path.name for path in elsewhere.iterdir()] == ["limit.html"]


def test_the_limit_of_a_plan_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = plan_file(["--lr-mult", "router=2", "--scheme", "mup", "--readout", "mup"], capsys)
    limit = as_json(["--plan", str(file), *NETWORKS], capsys)
    assert (limit["regime"], limit["scheme"]) == ("II", "mup")
    assert limit["plan"] == json.loads(file.read_text(encoding="utf-8"))["hash"]
    assert set(limit["finite"]) == {"8", "16"}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--regime", "II"),
        ("--scheme", "mssp"),
        ("--lr", "0.4"),
        ("--rates", "router=2"),
        ("--stds", "router=2"),
        ("--readout", "zero"),
        ("--width", "16"),
        ("--expert-width", "2"),
        ("--experts", "8"),
        ("--active", "8"),
    ],
)
def test_what_a_plan_says_is_not_said_again(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = plan_file([], capsys)
    assert main(["dmft", *TINY, "--plan", str(file), flag, value]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"mssp: error: {flag} does not go with --plan: the plan file says it\n")


@pytest.mark.parametrize(
    ("arguments", "sizes", "message"),
    [
        (["--optimizer", "adamw"], {}, "the limits are those of sgd, the plan is for adamw"),
        ([], {"depth": 2}, "the limits are those of one MoE layer, the plan has depth 2"),
        (["--base.width", "8", "--base.expert-width", "2", "--base.experts", "4", "--base.active", "4", "--base.depth",
          "1", "--base.inputs", "5"], {}, "the family has no base: plan its first member without one"),
        (["--scheme", "sp"], {}, "scheme 'sp' has no limit in regime II: the initial variance of expert_out grows"),
    ],
    ids=["adamw", "depth", "base", "sp"],
)  # fmt: skip
def test_a_plan_without_a_solver(
    arguments: list[str], sizes: dict[str, int], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan_file(arguments, capsys, **sizes)
    assert main(["dmft", *TINY, "--plan", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_a_file_that_is_no_plan(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "other.json").write_text("{}", encoding="utf-8")
    for file, message in (("other.json", "other.json: "), ("nowhere.json", "--plan must be a file that is there")):
        assert main(["dmft", *TINY, "--plan", file]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(f"mssp: error: {message}")
        assert (printed.out, printed.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regime", "IV"], "--regime must be one of I, II, III, got 'IV'"),
        (["--scheme", "best"], "--scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'best'"),
        (["--scheme", "jiang"], "scheme 'jiang' is defined for adam and adamw in regime III, not sgd in II"),
        (["--scheme", "sp"], "scheme 'sp' has no limit in regime II: the initial variance of expert_out grows as N^1"),
        (["--activation", "exp"], "--activation must be one of gelu, relu, silu, tanh, identity, got 'exp'"),
        (["--activation", "relu"], "two derivatives are needed, and relu has a kink: use tanh, gelu or silu"),
        (["--gate", "hard"], "--gate must be one of sigmoid, softmax, got 'hard'"),
        (["--readout", "open"], "--readout must be one of zero, mup, scheme, got 'open'"),
        (["--lr", "0"], "--lr must be a positive number, got 0"),
        (["--lr", "fast"], "--lr must be a positive number, got 'fast'"),
        (["--rates", "nonsense=1"], "rates of 'nonsense': the layers are embedding, router, expert_in, expert_out, "),
        (["--rates", "router=x"], "--rates must be positive numbers by role, as router=2, got 'router=x'"),
        (["--rates", "router=1", "router=2"], "--rates must be one number for router, got (1.0, 2.0)"),
        (["--stds", "router=0"], "--stds must be positive numbers by role, as router=2, got 'router=0'"),
        (["--inputs", "0"], "--inputs must be a positive whole number, got 0"),
        (["--test-inputs", "0"], "--test-inputs must be a positive whole number, got 0"),
        (["--steps", "0"], "--steps must be a positive whole number, got 0"),
        (["--solves", "0"], "--solves must be a positive whole number, got 0"),
        (["--samples", "0"], "--samples must be a positive whole number, got 0"),
        (["--samples", "99"], "99 samples are too few for 2 inputs at 5 times: use at least 100"),
        (["--test-inputs", "3", "--samples", "99"], "99 samples are too few for 5 inputs at 5 times: use at least 250"),
        (["--compare", "9", "16"], "width 9 times experts/width = 8/16 is no whole number: use another width"),
        (["--compare", "8", "--seeds", "0"], "--seeds must be a positive whole number, got 0"),
        (["--active", "3", "--compare", "8"], "width 8 times active/width = 3/16 is no whole number: use another "),
        (["--active", "9"], "active must be at most experts: a token cannot use 9 of 8"),
        (["--active", "2", "--regime", "I"], "top-K is solved for sigmoid gates in regimes II and III"),
        (["--active", "2", "--gate", "softmax"], "top-K is solved for sigmoid gates in regimes II and III"),
        (["--width", "0"], "--width must be a positive whole number, got 0"),
        (["--plot", "figure.gif"], "--plot must be a file to write that ends in .html, .svg, .pdf or .png"),
        (["--plot", "nowhere/x.html"], "--plot must be a file to write that ends in .html, .svg, .pdf or .png"),
        (["--device", "abacus"], "--device must be auto, cpu, cuda or cuda:1, got 'abacus'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    figure = [] if "--plot" in arguments else ["--plot", "limit.html"]
    assert main(["dmft", *TINY, *figure, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"mssp: error: {message}")
    assert list(elsewhere.iterdir()) == []


def test_a_divergence_has_a_step_and_a_remedy(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert main(["dmft", *TINY, "--lr", "200", "--plot", "limit.html"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mssp: error: gradient descent diverges at step 2: the loss went from 0.405 to ")
    assert printed.err.endswith("; use a learning rate below 200\n")
    assert printed.err.count("\n") == 1
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rates", "2"], "--rates must be positive numbers by role, as router=2, got '2'"),
        (["--stds", "embedding=1e200"], "the initial variance of embedding is not finite"),
        (["--compare", "0", "16"], "--compare must be"),
        (
            ["--regime", "III", "--width", "1024", "--experts", "512", "--active", "1"],
            "1 of 512 experts active is too fine a share for regime III",
        ),
        (
            ["--scheme", "mup-heuristic", "--rates", "expert_in=5"],
            "rates of expert_in: what mup-heuristic learns",
        ),
    ],
)
def test_more_mistakes_get_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["dmft", *TINY, *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"mssp: error: {message}")
    assert list(elsewhere.iterdir()) == []


def test_a_plan_with_inputs_of_one_number_is_refused(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    sizes = "--target.width 16 --target.experts 8 --target.active 8 --target.expert-width 2 --target.depth 1"
    assert main(f"plan {sizes} --regime II --optimizer sgd --lr 0.1 --json".split()) == 0
    (elsewhere / "plan.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["dmft", "--plan", "plan.json", *TINY]) == 2
    assert "the plan has inputs of one number, which are all alike" in capsys.readouterr().err
