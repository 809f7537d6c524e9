// Draws what the supervisor tells: one snapshot, then what changes of it (JSON Merge Patch, RFC 7396).
import { draw } from "./chart.js";

const SIGNS = { healthy: "✓", slow: "~", hung: "‖", dead: "✕", unknown: "?", starting: "↑", waiting: "…", debugged: "¶", ended: "■" };
const TABLE_AT_MOST = 40;  // groups: of more than these each is a tile, and only those that are not well have a row
const ROWS_AT_MOST = 100;

const $ = (id) => document.getElementById(id);
const run = new URLSearchParams(location.search).get("run") || "";
let state = {}, heard = 0, tried = 0, heardAt = null, stream = null, picked = 0;

function merge(target, change) {
  for (const [key, value] of Object.entries(change)) {
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const old = target[key];
      target[key] = merge(old && typeof old === "object" && !Array.isArray(old) ? old : {}, value);
    } else target[key] = value;
  }
  return target;
}

// --- words ---

const two = (n) => String(n).padStart(2, "0");
function clock(seconds) {
  const d = new Date(seconds * 1000), today = new Date(state.now * 1000).toDateString() === d.toDateString();
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return today ? time : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}`;
}
function lasted(s) {
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 119.5) return `${Math.round(s)} s`;
  const whole = Math.round(s), [big, small, names] = whole < 3600 ? [Math.floor(whole / 60), whole % 60, ["min", "s"]] : [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), ["h", "min"]];
  return small ? `${big} ${names[0]} ${small} ${names[1]}` : `${big} ${names[0]}`;
}
const number = (n) => n.toLocaleString("en");
const digits = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 1 ? v.toFixed(2) : v.toPrecision(2));

// --- the document: nothing is written that is there already, so that focus and selection stay ---

function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
  return node;
}
function is(node, name) {
  if (node.className !== name) node.className = name;
  return node;
}
function make(name, about = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(about)) key === "class" ? (made.className = value) : made.setAttribute(key, value);
  made.append(...children);
  return made;
}
// One child for each key, in this order; `fresh` makes one, `fill` writes into it.
function keep(parent, keys, fresh, fill) {
  parent.kept ??= new Map();
  for (const [key, child] of parent.kept) if (!keys.includes(key)) { child.remove(); parent.kept.delete(key); }
  let at = parent.firstElementChild;
  for (const key of keys) {
    let child = parent.kept.get(key);
    if (!child) parent.kept.set(key, (child = fresh(key)));
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    fill(child, key);
  }
}
const list = (parent, sentences) => keep(parent, [...new Set(sentences)], () => make("li"), say);
// What stands in backticks is a command.
const withCommands = (words) => make("li", {}, ...words.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part)));
function row(...names) {
  const made = make("tr", { role: "row" });
  names.forEach((name, at) => made.append(at ? make("td", { role: "cell", ...(name ? { "data-name": name } : {}) }) : make("th", { role: "rowheader", scope: "row" })));
  return made;
}
const signed = (word, about) => make("span", { class: `r ${word}`, ...about }, SIGNS[word]);

// --- the parts ---

function drawHead() {
  const { headline, get_up: up } = state;
  const level = up?.level === "now" ? "bad" : headline?.level;
  document.title = state.run ? `${{ good: "", care: "! ", bad: "✕ " }[level]}${state.run}` : "Everstep";
  say($("name"), state.run ? `Run ${state.run}` : "No run yet");
  const runs = Object.keys(state.runs).sort();
  keep($("runs"), runs.length > 1 ? runs : [], (name) => make("a", { href: `?run=${encodeURIComponent(name)}` }), (a, name) => {
    say(a, `${name} (${state.runs[name]})`);
    name === state.run ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current");
  });
  $("main").hidden = !state.run;
  if (!state.run) return;
  is($("now"), level);
  say($("headline"), headline.text);
  say($("getup-word"), up.word);
  keep($("getup-why"), [...new Set(up.why)], withCommands, () => {});
  const badges = [...(state.set ?? [])];
  if (state.store_since) badges.push(`etcd has not answered since ${clock(state.store_since)}: this is the state of that time`);
  list($("badges"), badges);
}

function drawNumbers() {
  const n = state.numbers, yet = (words) => n.over ? "" : words; // of what has ended nothing is still to come
  const all = {
    "Step": number(n.step),
    "Loss": n.loss === undefined ? yet("not known") : typeof n.loss === "string" ? `${n.loss} (not finite)` : n.loss.toFixed(3),
    "Step time": n.step_s ? `${digits(n.step_s)} s` : yet("not known"), "Tokens/s": n.tokens_per_s ? number(n.tokens_per_s) : yet("not known"),
    "Quorum": n.quorum ? `${n.quorum} of ${n.groups} groups, id ${n.quorum_id}` : yet("none yet"),
    "Checkpoint": n.checkpoint === undefined ? yet("none yet") : `step ${number(n.checkpoint)}`,
    "Spares": `${state.nodes_by_state.spare}${nodeless()}`, "Leader": n.leader ? `${n.leader}, epoch ${n.epoch}` : "none", "Lighthouse": yet(n.lighthouse),
  };
  const told = Object.fromEntries(Object.entries(all).filter(([, words]) => words));
  keep($("numbers"), Object.keys(told), (name) => make("div", {}, make("dt", {}, name), make("dd")), (div, name) => say(div.lastChild, told[name]));
}

// A spare that a lost group is about to take is one still.
function nodeless() {
  const groups = state.nodeless;
  if (!groups.length) return "";
  return `; ${groups.length === 1 ? `group ${groups[0]} waits` : `${groups.length} groups wait`} for a node`;
}

const word = (letter) => state.letters[letter];
function ranksIn(box, group) {
  keep(box, [...group.ranks].map((_, at) => String(at)), () => make("span", { role: "img" }), (span, at) => {
    const verdict = word(group.ranks[at]);
    is(say(span, SIGNS[verdict]), `r ${verdict}`);
    const label = `rank ${at} ${verdict}`;
    if (span.title !== label) { span.title = label; span.setAttribute("aria-label", label); }
  });
}
const sentence = (g, group) => `Group ${g}: ${word(group.worst)}${group.why ? `, ${group.why}` : ""}. ${group.node ? `On ${group.node}, ` : ""}generation ${group.generation}, step ${number(group.step)}${group.incident ? `, incident ${group.incident}` : ""}.`;

function drawGroups() {
  const all = Object.keys(state.groups).sort((a, b) => a - b), many = all.length > TABLE_AT_MOST;
  keep($("legend"), Object.keys(SIGNS), (v) => make("li", {}, signed(v, { "aria-hidden": "true" }), v), () => {});
  $("tiles").hidden = $("tile").hidden = !many;
  if (many) drawTiles(all);
  const unwell = all.filter((g) => !"he".includes(state.groups[g].worst)), rows = many ? unwell.slice(0, ROWS_AT_MOST) : all;
  keep($("groups").tBodies[0], rows, () => {
    const made = row("group", "", "", "on", "generation", "step", "incident");
    made.children[1].append(make("div", { class: "ranks" }));
    made.children[2].append(make("div"), make("div", { class: "why" }));
    made.children[1].classList.add("wide"); made.children[2].classList.add("wide");
    for (const at of [4, 5]) made.children[at].classList.add("n");
    made.children[6].append(make("a"));
    return made;
  }, (tr, g) => {
    const group = state.groups[g];
    say(tr.children[0], `Group ${g}`);
    ranksIn(tr.children[1].firstChild, group);
    say(tr.children[2].firstChild, word(group.worst));
    say(tr.children[2].lastChild, group.why);
    say(tr.children[3], group.node || "none");
    say(tr.children[4], String(group.generation));
    say(tr.children[5], group.step ? number(group.step) : "none");
    const link = say(tr.children[6].firstChild, group.incident || "none");
    group.incident ? link.setAttribute("href", `#${group.incident}`) : link.removeAttribute("href");
  });
  const more = many ? `${all.length - unwell.length} of ${all.length} groups are well${unwell.length > rows.length ? `; ${rows.length} of the ${unwell.length} others have a row` : ""}.` : "";
  say($("groups-more"), more);
  $("groups").hidden = !rows.length;
}

function drawTiles(all) {
  picked = Math.min(picked, all.length - 1);
  keep($("tiles"), all, (g) => make("span", { role: "option", id: `g${g}`, tabindex: "-1" }), (span, g) => {
    const verdict = word(state.groups[g].worst);
    is(say(span, SIGNS[verdict]), `r ${verdict}`);
    const label = `group ${g} ${verdict}`;
    if (span.title !== label) { span.title = label; span.setAttribute("aria-label", label); }
    const chosen = g === all[picked];
    if (span.tabIndex !== (chosen ? 0 : -1)) span.tabIndex = chosen ? 0 : -1;
    if (span.getAttribute("aria-selected") !== String(chosen)) span.setAttribute("aria-selected", String(chosen));
  });
  say($("tile"), sentence(all[picked], state.groups[all[picked]]));
}
function pick(at) {
  const tiles = $("tiles").children;
  picked = Math.max(0, Math.min(tiles.length - 1, at));
  drawTiles(Object.keys(state.groups).sort((a, b) => a - b));
  tiles[picked].focus();
}
$("tiles").addEventListener("keydown", (event) => {
  const tiles = [...$("tiles").children], top = tiles[picked].offsetTop, first = tiles.findIndex((t) => t.offsetTop !== tiles[0].offsetTop);
  const wide = first < 0 ? tiles.length : first, by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide, Home: -picked, End: tiles.length }[event.key];
  if (by === undefined || top === undefined) return;
  event.preventDefault();
  pick(picked + by);
});
$("tiles").addEventListener("click", (event) => {
  const at = [...$("tiles").children].indexOf(event.target);
  if (at >= 0) pick(at);
});

function drawCharts() {
  const points = Object.keys(state.history).sort((a, b) => a - b).map((key) => state.history[key]);
  const marks = Object.entries(state.incidents).filter(([, i]) => i.opened !== undefined).map(([id, i]) => [i.opened, id]);
  const losses = points.filter((p) => p[2] !== "").map((p) => [p[0], p[2]]), times = points.filter((p) => p[3] > 0).map((p) => [p[0], p[3]]);
  for (const [id, name, found, unit] of [["loss", "Loss", losses, ""], ["time", "Step time", times, " s"]]) {
    const words = found.length ? `${digits(found[found.length - 1][1])}${unit}` : "not known";
    say($(`${id}-now`), `${name}: ${words}`);
    const label = found.length > 1 ? `${name} from ${digits(found[0][1])}${unit} at ${clock(found[0][0])} to ${words} at ${clock(found[found.length - 1][0])}` : `${name}: too few points yet`;
    if ($(id).getAttribute("aria-label") !== label) $(id).setAttribute("aria-label", label);
    draw($(id), found, marks, digits, clock, id === "time" ? 0 : undefined);
  }
  say($("charts-since"), `Recorded by this supervisor since ${clock(state.since)}. Dashed lines: incidents.`);
}

const MEANS = {
  allocate: "waiting for nodes", start: "processes starting", admission: "waiting for the gate", data: "waiting for data", quorum: "waiting for the quorum",
  heal: "healing from peers", failed_step: "steps not committed", checkpoint: "checkpoints", evaluate: "evaluating", compile: "compiling", digest: "hashing the parameters", recompute: "steps computed again",
  hung: "hung", straggling: "waiting for a slow group", lost_step: "steps lost with their process", detect: "until a failure was detected", decide: "detected, not yet decided",
  store_away: "etcd unavailable", place: "fencing, or looking for a node", act: "until a process started", end: "finished before the others", other: "other",
};
const NAMED = 4;  // causes; the others are one
function drawSpent() {
  const { ettr, group_s: whole, lost, ran_s, began, ended } = state.time ?? {}, known = whole > 0;
  $("spent").hidden = !known;
  if (!known) return;
  const percent = (share) => `${(100 * share).toFixed(1)}%`, seen = lost.filter(([, share]) => share >= 0.001), rest = seen.slice(NAMED).reduce((sum, [, share]) => sum + share, 0);
  const shares = [["trained the model", ettr], ...seen.slice(0, NAMED).map(([cause, share]) => [MEANS[cause] ?? cause, share]), ...(rest >= 0.001 ? [["the rest", rest]] : [])];
  say($("spent-word"), `ETTR ${percent(ettr)}: this share of ${lasted(whole)} of group time (the sum over all groups) trained the model. The rest is badput. ${ended === undefined ? "These numbers are at most 30 s old." : "The run is over."}${began === undefined ? "" : ended === undefined ? ` It has run for ${lasted(ran_s)}, since ${clock(began)}.` : ` It lasted ${lasted(ran_s)}, from ${clock(began)} to ${clock(ended)}.`}`);
  shares.forEach((_, at) => { shares[at].push(`s${at}`); });
  keep($("spent-bar"), shares.map(([name]) => name), () => make("span"), (span, name) => {
    const [, share, kind] = shares.find(([n]) => n === name);
    is(span, kind).style.width = percent(share);
  });
  keep($("spent-list"), shares.map(([name]) => name), () => make("li"), (li, name) => {
    const [, share, kind] = shares.find(([n]) => n === name);
    is(say(li, `${name} ${percent(share)} (${lasted(share * whole)})`), kind);
  });
}

const PARTS = [["What was seen", "seen"], ["What else was considered, and why not", "considered"], ["What each would cost, in lost group-seconds until it steps again", "costs"]];
function drawIncidents() {
  const of = state.incidents, ids = Object.keys(of).sort((a, b) => of[b].open - of[a].open || of[b].order - of[a].order || b.localeCompare(a, "en", { numeric: true }));
  say($("incidents-sum"), ids.length ? `${state.incidents_all} so far, ${ids.filter((id) => of[id].open).length} open. They cost ${lasted(state.lost_s)} of group time so far: for each, from the loss of its group until it trained again, or until now.` : "None so far.");
  keep($("incidents-list"), ids, freshIncident, (li, id) => {
    const i = of[id], [summary, body] = li.firstChild.children;
    is(li, i.open ? `open${i.shadow ? " shadow" : ""}` : i.state);
    const [title, done, when] = summary.children, [tag, what] = title.children;
    is(say(tag, i.open ? "open" : i.state), `tag ${i.open ? "open" : i.state}`);
    say(what, ` ${id}: ${i.kind.replaceAll("_", " ")} of group ${i.group}${i.rank === undefined ? "" : `, rank ${i.rank}`}${i.node ? `, on node ${i.node}` : ""}`);
    say(done, i.did);
    say(when, moment(i));
    const why = i.trace ? [["The traceback", i.trace]] : [];
    const parts = [["Why", [i.why || "no decision yet"]], ...PARTS.map(([name, key]) => [name, i[key]]), ["Times", times(i)], ...why].filter(([, p]) => p.length);
    keep(body, parts.map(([name]) => name), (name) => make("section", {}, make("h3", {}, name), make(name === "The traceback" ? "pre" : "ul")), (part, name) => {
      const told = parts.find(([n]) => n === name)[1];
      name === "The traceback" ? say(part.lastChild, told) : list(part.lastChild, told);
    });
  });
  const hidden = state.incidents_all - ids.length;
  say($("incidents-more"), hidden ? `${hidden} older incidents: supervisor incidents --run ${state.run}` : "");
}
function freshIncident(id) {
  const summary = make("summary", {}, make("p", {}, make("span"), make("span", { class: "what" })), make("p"), make("p", { class: "small" }));
  const details = make("details", {}, summary, make("div"));
  details.open = state.incidents[id].open;
  return make("li", { id, tabindex: "-1" }, details);
}
function moment(i) {
  const began = i.opened === undefined ? undefined : i.opened - i.took_s, lost = TRAINED.includes(i.kind) ? "Began" : "Lost";
  const when = began === undefined ? "Time of day not known yet" : i.took_s >= 0.1 ? `${lost} about ${clock(began)}, seen at ${clock(i.opened)}` : `Seen at ${clock(i.opened)}`;
  if (i.recovered_s !== undefined) return `${when}; over after ${lasted(i.lasted_s)}${i.shadow ? ", by itself" : ""}. Generation ${i.generations.join(" → ")}.`;
  return `${when}; ${i.open ? "not over yet" : i.state}${i.open && i.lasted_s !== undefined ? `, for ${lasted(i.lasted_s)}` : ""}.`;
}
const TRAINED = ["straggler", "leaving"];  // no failure: its group trains on
function times(i) {
  const told = i.took_s ? [`it had lasted ${lasted(i.took_s)} before it counted as a failure`] : [];
  for (const [name, said] of [["decided", "decided"], ["acted", "started"], ["recovered", "recovered"]]) {
    if (i[`${name}_s`] !== undefined) told.push(`${said} ${i[`${name}_s`].toFixed(2)} s after it was detected${i[name] === undefined ? "" : ` (${clock(i[name])})`}`);
  }
  return [...told, `the group's newest step was ${number(i.step)}`, `confidence in cause and culprit: ${i.confidence}`];
}

function drawNodes() {
  const by = state.nodes_by_state, ids = Object.keys(state.nodes), total = by.alive + by.silent;
  const others = Object.entries(by).filter(([name, n]) => n && name !== "alive").map(([name, n]) => `${n} ${name}`);
  say($("nodes-count"), `${by.alive} of ${total} nodes alive${others.length ? ` (${others.join(", ")})` : ""}. Spares: ${state.spares.slice(0, 8).join(", ") || "none"}${state.spares.length > 8 ? ` and ${state.spares.length - 8} more` : ""}${nodeless()}.`);
  ids.sort((a, b) => (state.nodes[b].wrong.length > 0) - (state.nodes[a].wrong.length > 0) || a.localeCompare(b, "en", { numeric: true }));
  keep($("nodes").tBodies[0], ids, () => {
    const made = row("", "agent", "runs", "");
    made.children[3].append(make("ul"));
    made.children[3].classList.add("wide", "why");
    return made;
  }, (tr, id) => {
    const n = state.nodes[id];
    say(tr.children[0], n.host === id || id.startsWith("host ") ? id : `${id} on ${n.host}`);
    say(tr.children[1], n.alive ? (n.checking ? "alive, being checked" : "alive") : "silent");
    say(tr.children[2], n.does || "nothing");
    list(tr.children[3].firstChild, n.wrong);
  });
  say($("nodes-more"), total > ids.length ? `${total - ids.length} more nodes are not listed: supervisor nodes` : "");
}

function drawRest() {
  keep($("budgets").tBodies[0], state.budgets.map((b) => `${b.what} ${b.group}`), () => row("", "", ""), (tr, key) => {
    const b = state.budgets.find((one) => `${one.what} ${one.group}` === key);
    say(tr.children[0], b.what);
    say(tr.children[1], b.group ? `group ${b.group}` : "the run");
    say(tr.children[2], b.left ? `${b.left} of ${b.of}` : `none of ${b.of}`);
  });
  $("notes-section").hidden = !state.notes.length;
  list($("notes"), state.notes);
}

function drawAll() {
  drawHead();
  document.body.classList.toggle("unread", Boolean(state.run) && !state.groups);
  if (!state.run || !state.groups) return;
  drawNumbers(); drawGroups(); drawCharts(); drawSpent(); drawIncidents(); drawNodes(); drawRest();
}

// --- the stream ---

function take(event) {
  const body = JSON.parse(event.data);
  state = event.type === "whole" ? body : merge(state, body);
  heard = performance.now();
  heardAt = new Date();
  drawAll();
  look();
}
function look() {
  const word = $("word"), patience = 1000 * (heardAt === null ? 30 : 3 * state.every_s + 4), now = performance.now();
  // a connection that a firewall has forgotten is open for ever, and carries nothing
  if (now - Math.max(heard, tried) > patience) connect();
  if (heardAt === null) return;
  const at = `${two(heardAt.getHours())}:${two(heardAt.getMinutes())}:${two(heardAt.getSeconds())}`;
  const broken = now - heard > patience || stream.readyState !== EventSource.OPEN;
  say(word, broken ? `no update since ${at}; trying again` : `live, ${at}`);
  document.body.classList.toggle("lost", broken);
  if (broken && state.run) document.title = `? ${state.run}`;
  word.setAttribute("aria-live", broken ? "assertive" : "off");
}
function connect() {
  tried = performance.now();
  stream?.close();
  stream = new EventSource(`events${run ? `?run=${encodeURIComponent(run)}` : ""}`);
  stream.addEventListener("whole", take);
  stream.addEventListener("change", take);
  stream.onerror = () => {
    if (heardAt === null) say($("word"), "the supervisor does not answer; trying again");
    look();
    // after an answer that is no stream (503, 404) a browser does not try again by itself
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}
addEventListener("hashchange", () => {
  const details = document.getElementById(location.hash.slice(1))?.firstChild;
  if (details?.tagName === "DETAILS") details.open = true;
});
new ResizeObserver(() => state.history && drawCharts()).observe($("charts"));
const zone = -new Date().getTimezoneOffset(), from = `UTC${zone < 0 ? "-" : "+"}${two(Math.floor(Math.abs(zone) / 60))}:${two(Math.abs(zone) % 60)}`;
say($("zone"), zone ? `${Intl.DateTimeFormat().resolvedOptions().timeZone}, now ${from}` : "UTC");
setInterval(look, 1000);
connect();
