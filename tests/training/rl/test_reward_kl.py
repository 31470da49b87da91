"""What a run won against how far it went: the panels of a log."""

from pathlib import Path

from intaglio.training.rl.reward_kl import draw_reward_kl, reward_kl_panels


def test_rollouts_of_ppo_are_a_curve_of_few_points() -> None:
    lines = [{"step": n, "loss": 1.0, "objective/kl": float(n), "objective/scores": 2.0 * n} for n in range(100)]
    [(title, curves)] = reward_kl_panels([*lines, {"step": 100, "loss": 1.0}]).items()
    assert title == "reward of rollouts"
    assert curves[""][0] == (1.0, 2.0)  # steps 0, 1, 2
    assert len(curves[""]) == 34


def test_what_judged_held_out_prompts_has_a_panel_each() -> None:
    lines = [
        {
            "step": n,
            "samples/kl": 0.5 * n,
            "samples/length": 3.0,
            **{f"samples/{name}": n + 1.0 for name in ("reward", "sober")},
            **{f"samples/start_{name}": 1.0 for name in ("reward", "sober")},
            **{f"samples/{name}_win_rate": 0.5 for name in ("reward", "sober")},
        }
        for n in (1, 2)
    ]
    panels = reward_kl_panels(lines)
    assert [*panels] == ["reward, held-out prompts", "sober, held-out prompts"]
    assert panels["sober, held-out prompts"] == {"policy": [(0.5, 2.0), (1.0, 3.0)], "start": [(0.5, 1.0), (1.0, 1.0)]}


def test_where_nothing_judged_there_is_the_margin_that_was_trained() -> None:
    lines = [
        {"step": 1, "rewards/margins": 0.1},
        {"step": 2, "rewards/margins": 0.3},
        {"step": 2, "samples/kl": 0.7},
        {"step": 3, "rewards/margins": 0.5},
    ]
    assert reward_kl_panels(lines) == {"implied margin of a pair": {"": [(0.7, 0.3)]}}


def test_of_nothing_there_is_no_picture(tmp_path: Path) -> None:
    draw_reward_kl([{"step": 1, "loss": 2.0}], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    draw_reward_kl([{"step": 1, "kl": 2.0, "reward": 1.0}, {"step": 2, "kl": 3.0, "reward": 2.0}], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
