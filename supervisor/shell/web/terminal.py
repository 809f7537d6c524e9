"""Draws the page's snapshot for a terminal, as lines that fit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from supervisor.core.model.kinds import TRAINS_ON
from supervisor.core.report.visible import visible

SIGNS = {
    "healthy": "✓", "slow": "~", "hung": "‖", "dead": "✕", "unknown": "?", "starting": "↑", "waiting": "…", "ended": "■",
    "debugged": "¶",
}  # fmt: skip
PLAIN = {
    "healthy": "+", "slow": "~", "hung": "=", "dead": "x", "unknown": "?", "starting": "^", "waiting": ".", "ended": "#",
    "debugged": "b",
}  # fmt: skip
"""Signs for a terminal without other characters."""

COLOURS = {
    "healthy": "green", "slow": "yellow", "hung": "magenta", "dead": "red", "unknown": "cyan", "starting": "blue",
    "debugged": "blue",
}  # fmt: skip
LEVELS = {"good": "bold green", "care": "bold yellow", "bad": "bold red", "no": "", "soon": "yellow", "now": "bold red"}

RANKS = 16
"""Most ranks of a group whose signs its row shows; for more, it counts ranks by verdict."""

SPARE = 12
"""Least lines kept for groups and incidents."""

_LEFT = "budgets left  "

ENDLESS = 10_000
"""Lines or columns of an output of unlimited size."""


class Word(NamedTuple):
    """The age of the picture."""

    text: str
    lost: bool = False
    """True if no picture comes any more."""


class Drawing:
    """Draws lines of a given width; cuts each section to the height that is left."""

    def __init__(self, told: Mapping[str, Any], width: int, signs: Mapping[str, str] = SIGNS) -> None:
        self._told, self._width, self._signs = told, width, signs

    def lines(self, word: Word, height: int) -> list[Text]:
        """Returns the lines of the whole page. `word` says how old the picture is."""
        told = self._told
        if not told.get("run"):
            return [*self._head(word), Text("There is no run: start one with `supervisor launch RUN.toml`.")]
        top = [*self._head(word), *self._attention(height), *self._badges()]
        if "groups" not in told:
            return top[:height]
        top += [*self._numbers(), *self._time()]
        foot = [*self._nodes(), *self._budgets(), *self._wrong(height), *self._notes(height)]
        room = height - len(top) - len(foot)
        if room < SPARE:  # a small terminal can do without the last of these
            foot = foot[: max(0, height - len(top) - SPARE)]
            room = height - len(top) - len(foot)
        incidents = self._incidents(room)
        groups = self._groups(max(room // 2, room - len(incidents)))
        return [*top, *groups, *self._incidents(room - len(groups)), *foot][:height]

    # --- parts ---

    def _head(self, word: Word) -> list[Text]:
        run = f"run {self._told['run']}" if self._told.get("run") else "supervisor"
        line = Text().append(run, "bold")
        if self._width < ENDLESS:
            line.append(" " * max(2, self._width - len(run) - len(word.text)))
        else:
            line.append("  ")
        return [self._cut(line.append(word.text, "reverse" if word.lost else "dim"))]

    def _attention(self, height: int) -> list[Text]:
        headline, up = self._told["headline"], self._told["get_up"]
        found = [
            *self._folded(headline["text"], LEVELS[headline["level"]]),
            *self._folded(up["word"], LEVELS[up["level"]]),
        ]
        why = [
            line for sentence in dict.fromkeys(up["why"]) for line in self._folded(f"- {sentence}", LEVELS[up["level"]])
        ]
        return found + self._some(why, max(2, height // 5))

    def _badges(self) -> list[Text]:
        said = list(self._told.get("set", ()))
        if since := self._told.get("store_since"):
            said.append(
                f"etcd has not answered since {clock(since)} ({lasted(self._told['now'] - since)}): this is the state of that time"
            )
        return [line for sentence in said for line in self._folded(f"! {sentence}", "bold yellow")]

    def _numbers(self) -> list[Text]:
        n = self._told["numbers"]
        loss, checkpoint = n.get("loss"), n.get("checkpoint")

        def yet(words: str) -> str:
            return "" if n["over"] else words  # nothing is still to come of an ended run

        said = [
            f"step {n['step']:,}",
            f"loss {loss:.3f}" if isinstance(loss, float | int) else f"loss {loss}" if loss else yet("loss not known"),
            f"{n['step_s']:.3g} s a step" if n["step_s"] else "",
            f"{n['tokens_per_s']:,} tokens/s" if n["tokens_per_s"] else "",
            f"quorum {n['quorum']} of {n['groups']}, id {n['quorum_id']}" if n["quorum"] else yet("no quorum yet"),
            f"checkpoint step {checkpoint:,}" if checkpoint is not None else yet("no checkpoint yet"),
            f"leader {n['leader']}, epoch {n['epoch']}" if n["leader"] else "no leader",
            yet(f"lighthouse {n['lighthouse']}"),
        ]
        return [Text(), *self._flow(word for word in said if word)]

    def _time(self) -> list[Text]:
        spent = self._told.get("time")
        if not spent:
            return []
        shares = [f"{cause.replace('_', ' ')} {share:.1%}" for cause, share in spent["lost"] if share >= 0.001]
        head = f"ETTR {spent['ettr']:.1%} of {lasted(spent['group_s'])} of group time{_from_to(spent)}"
        return self._flow(
            [f"{head}; badput:", *(f"{s}," for s in shares[:-1]), *shares[-1:]] if shares else [head], " "
        )

    def _groups(self, height: int) -> list[Text]:
        told, letters = self._told["groups"], self._told["letters"]
        numbers = sorted(told, key=int)
        by = Counter(letters[told[g]["worst"]] for g in numbers)
        head = Text().append("groups ", "bold")
        for verdict in self._signs:
            if by[verdict]:
                head.append(f" {self._signs[verdict]} ", COLOURS.get(verdict, "")).append(f"{by[verdict]} {verdict} ")
        unwell = [g for g in numbers if told[g]["worst"] not in "he"]
        # too many for a row each: rows for those that are not well, and a sign for each group if there is room
        shown = numbers if len(numbers) + 1 < height else unwell[: max(0, height - 3)]
        rows = [self._group(g, told[g]) for g in shown]
        hidden = len(unwell) - len([g for g in shown if g in unwell])
        if hidden:
            head.append(f"  ({hidden} more with problems)", "dim")
        tiles = self._tiles(numbers) if shown != numbers else []
        if len(tiles) > height - 2 - len(rows):
            tiles = []
        return [Text(), self._cut(head), *tiles, *rows]

    def _tiles(self, numbers: Sequence[str]) -> list[Text]:
        told, letters = self._told["groups"], self._told["letters"]
        line = Text()
        for g in numbers:
            verdict = letters[told[g]["worst"]]
            line.append(self._signs[verdict], COLOURS.get(verdict, ""))
        return [line[at : at + self._width] for at in range(0, len(line), self._width)]

    def _group(self, g: str, group: Mapping[str, Any]) -> Text:
        letters = self._told["letters"]
        line = Text(f"{g:>4}  ")
        if len(group["ranks"]) <= RANKS:
            for letter in group["ranks"]:
                line.append(self._signs[letters[letter]], COLOURS.get(letters[letter], ""))
        else:
            said = Counter(letters[letter] for letter in group["ranks"])
            line.append(" ".join(f"{n}{self._signs[verdict]}" for verdict, n in said.items()))
        verdict = letters[group["worst"]]
        line.append(f"  {verdict:8}", COLOURS.get(verdict, ""))
        line.append(f"  {group['node'] or 'no node':6}  generation {group['generation']}")
        line.append(f"  step {group['step']:,}" if group["step"] else "")
        line.append(f"  {group['incident']}" if group["incident"] else "", "bold")
        return self._cut(line.append(f"  {_printable(group['why'])}" if group["why"] else "", "dim"))

    def _incidents(self, height: int) -> list[Text]:
        of = self._told["incidents"]
        ids = sorted(
            of, key=lambda i: (of[i]["open"], of[i]["order"], int(i[1:]) if i[1:].isdigit() else 0), reverse=True
        )
        is_open = sum(of[i]["open"] for i in ids)
        summed = f"{self._told['incidents_all']} so far, {is_open} open; {lasted(self._told['lost_s'])} of group time lost so far"
        found = [Text(), self._cut(Text().append("incidents  ", "bold").append(summed if ids else "none so far"))]
        for left, i in enumerate(ids):
            lines = self._incident(i, of[i])
            more = len(ids) - left
            room = height - len(found) - (more > 1)
            if room < len(lines):
                found += lines[: max(0, room)]
                more -= room > 0
                return [*found, *([Text(f"  and {more} more: supervisor incidents", "dim")] if more else [])][
                    : max(0, height)
                ]
            found += lines
        return found[: max(0, height)]

    def _incident(self, i: str, about: Mapping[str, Any]) -> list[Text]:
        rank = f", rank {about['rank']}" if "rank" in about else ""
        node = f", on {about['node']}" if about["node"] else ""
        state = "open" if about["open"] else about["state"]
        line = Text(f"  {i} ").append(state, "bold red" if state in ("open", "halted") else "green")
        line.append(
            f"  {about['kind'].replace('_', ' ')} of group {about['group']}{rank}{node}; ",
            "bold" if about["open"] else "",
        )
        line.append(self._when(about))
        done = Text(f"     {_printable(about['did'])}", "dim")
        why = Text(f"     {_printable(about['why'])}", "dim") if about["open"] and about["why"] else None
        return [self._cut(one) for one in (line, done, why) if one is not None]

    def _when(self, about: Mapping[str, Any]) -> str:
        took_s = about["took_s"]
        seen = f"seen {clock(about['opened'])}, " if "opened" in about else ""
        if seen and took_s >= 0.1:
            began = "began" if about["kind"] in TRAINS_ON else "lost"
            seen = f"{began} about {clock(about['opened'] - took_s)}, {seen}"
        if "recovered_s" in about:
            return f"{seen}over after {lasted(about['lasted_s'])}"
        if about["open"] and "lasted_s" in about:
            return f"{seen}for {lasted(about['lasted_s'])}"
        return f"{seen}{'not over' if about['open'] else about['state']}"

    def _nodes(self) -> list[Text]:
        by, spares = self._told["nodes_by_state"], self._told["spares"]
        others = [f"{n} {state}" for state, n in by.items() if n and state not in ("alive", "spare")]
        head = f"{by['alive']} of {by['alive'] + by['silent']} alive"
        head += f" ({', '.join(others)})" if others else ""
        named = ", ".join(spares[:4]) + (f" and {len(spares) - 4} more" if len(spares) > 4 else "")
        waits = self._told["nodeless"]
        who = f"group {waits[0]} waits" if len(waits) == 1 else f"{len(waits)} groups wait"
        nodeless = f"; {who} for a node" if waits else ""
        line = Text().append("nodes  ", "bold").append(f"{head}; spares: {named or 'none'}{nodeless}")
        return [Text(), self._cut(line)]

    def _wrong(self, height: int) -> list[Text]:
        who: dict[str, list[str]] = {}  # a problem that several nodes share is shown once
        for name, node in self._told["nodes"].items():
            for wrong in node["wrong"]:
                who.setdefault(wrong, []).append(name)
        said = [
            f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}: {_printable(wrong)}"
            for wrong, names in sorted(who.items(), key=lambda one: len(one[1]))
        ]
        return self._some([self._cut(Text(f"- {one}", "yellow")) for one in said], height // 12)

    def _budgets(self) -> list[Text]:
        said = [
            f"{b['what']}{' of group ' * bool(b['group'])}{b['group']}: {b['left']} of {b['of']}"
            for b in self._told["budgets"]
        ]
        first, *others = self._flow([f"{one}," for one in said[:-1]] + said[-1:], " ", len(_LEFT)) or [Text()]
        return [Text().append(_LEFT, "bold").append(first), *others]

    def _notes(self, height: int) -> list[Text]:
        return self._some(
            [line for note in self._told["notes"] for line in self._folded(f"- {note}", "yellow")], height // 12
        )

    # --- fitting ---

    def _cut(self, line: Text) -> Text:
        line.truncate(self._width, overflow="crop" if self._signs is PLAIN else "ellipsis")
        return line

    def _folded(self, words: str, style: str = "") -> list[Text]:
        """Folds a sentence into as many lines as it needs."""
        return [Text(line, style) for line in _wrapped(_printable(words), self._width)]

    def _flow(self, words: Iterable[str], gap: str = "   ", before: int = 0) -> list[Text]:
        """Joins words, without breaking any, into as few lines as possible; the first line is shorter by `before`."""
        lines = [" " * before]
        for word in words:
            joined = f"{lines[-1]}{gap}{word}" if lines[-1].strip() else f"{lines[-1]}{word}"
            if len(joined) <= self._width:
                lines[-1] = joined
            else:
                lines.append(word)
        return [self._cut(Text(line[before:] if at == 0 else line)) for at, line in enumerate(lines)]

    def _some(self, lines: list[Text], at_most: int) -> list[Text]:
        if len(lines) <= at_most:
            return lines
        return (
            [*lines[: at_most - 1], Text(f"  and {len(lines) - at_most + 1} more lines", "dim")] if at_most > 0 else []
        )


def _from_to(spent: Mapping[str, Any]) -> str:
    """Returns how long a run lasted, and between which times, as far as is known."""
    if "began" not in spent:
        return ""
    until = f" to {clock(spent['ended'])}" if "ended" in spent else ""
    return f", {lasted(spent['ran_s'])} from {clock(spent['began'])}{until}"


def _printable(words: str) -> str:
    """Returns the output of a trainer or program as one printable line."""
    return visible(words).replace("\n", " ").replace("\t", " ")


def _wrapped(words: str, width: int) -> list[str]:
    """Wraps words into lines. Not textwrap's rule, since a path may be longer than a line."""
    lines = [""]
    for word in words.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("  ")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{word}"
    return [part for line in lines for part in ([line[at : at + width] for at in range(0, len(line), width)] or [""])]


def clock(unix_s: float) -> str:
    """Returns local time; with the date if it is not today."""
    at = time.localtime(unix_s)
    return time.strftime("%H:%M:%S" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", at)


def zone(unix_s: float) -> str:
    """Returns the time zone of `clock` in ASCII letters or digits: UTC, CET, +0530."""
    name = time.strftime("%Z", time.localtime(unix_s))
    return name if name.isascii() and name.isalnum() else time.strftime("%z", time.localtime(unix_s))


def lasted(seconds: float) -> str:
    """Formats a duration as the page does."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    big, small = (whole // 60, whole % 60) if whole < 3600 else (whole // 3600, whole % 3600 // 60)
    names = ("min", "s") if whole < 3600 else ("h", "min")
    return f"{big} {names[0]} {small} {names[1]}" if small else f"{big} {names[0]}"
