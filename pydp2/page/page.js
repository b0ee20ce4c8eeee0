"use strict";
// Ask for what was seen once a second, and draw it. Text goes into the page as text alone, never as HTML.

const token = document.body.dataset.token;
const LOOK_MS = 1000;
const RECENT = 600;
let points = [];
let whole = [];
let latest = 0;
let showsWhole = false;
let failures = 0;
let lastSamples = "";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function draw(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const percent = (share) => `${number(100 * share, share < 0.1 ? 1 : 0)} %`;

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${number(value, value < 10 && at ? 1 : 0)} ${units[at]}`;
}

function time(seconds) {
  if (seconds < 1) return `${number(1000 * seconds, 0)} ms`;
  if (seconds < 90) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function showState(text, isBad) {
  const state = byId("state");
  state.textContent = text;
  state.className = isBad ? "bad" : "";
}

function setText(id, text) {  // only a change is read out by a screen reader
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function showAnswer(answer) {
  setText("headline", answer.headline);
  setText("rest", [answer.cause, answer.who, answer.remedy].filter(Boolean).join(" "));
  const section = document.querySelector(".answer");
  section.classList.toggle("is-bad", answer.exposed !== null && answer.exposed > 0.1);
  section.classList.toggle("is-good", answer.exposed !== null && answer.exposed <= 0.1);
  byId("stages").hidden = !answer.shares.length;
  const bar = draw("svg", { class: "bar", viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  const items = answer.shares.map(([name, share], index) => {
    bar.append(draw("rect", { x: 1000 * at, y: 0, width: 1000 * share, height: 18, class: `fill-${index}` }));
    at += share;
    return make("li", {}, make("span", { class: `key key-${index}`, "aria-hidden": "true" }), `${name} ${percent(share)}`);
  });
  items.push(make("li", {}, `server busy ${percent(answer.server)}`));
  byId("shares").replaceChildren(bar, ...items);
}

function quantiles(found, what) {
  const of = (part) => found.map((point) => point[`${what} quantile ${part}`]);
  return [of("0.0"), of("0.25"), of("0.5"), of("0.75"), of("1.0")];
}

function namesOf(found, what) {
  const names = new Set();
  for (const point of found) {
    for (const name of Object.keys(point)) {
      if (name.startsWith(`${what} `) && !name.startsWith(`${what} quantile`)) names.add(name);
    }
  }
  return [...names];
}

function path(times, values, top, from, span) {
  let text = "";
  let isOpen = false;
  values.forEach((value, index) => {
    if (value === undefined) { isOpen = false; return; }
    const x = (1000 * (times[index] - from)) / span;
    const y = 88 - (84 * value) / top;
    text += `${isOpen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isOpen = true;
  });
  return text;
}

function chart(title, found, lines, show, { top = null, bands = null } = {}) {
  const times = found.map((point) => point.time);
  const from = times.length ? times[0] : 0;
  const span = Math.max(1, times.length ? times[times.length - 1] - from : 1);
  const all = [...lines.map((line) => line.values), ...(bands || [])].flat().filter((value) => value !== undefined);
  const most = top || Math.max(1e-9, ...all);
  const svg = draw("svg", { viewBox: "0 0 1000 90", preserveAspectRatio: "none", role: "img" });
  const ends = lines.map((line) => line.values[line.values.length - 1]).filter((value) => value !== undefined);
  const last = ends.length ? Math.max(...ends) : undefined;
  const spoken = last === undefined ? "no figure" : `now ${show(last)}`;
  svg.setAttribute("aria-label", `${title}: ${spoken}, at most ${show(Math.max(0, ...all))}`);
  if (bands) {
    for (const [low, high] of [[0, 4], [1, 3]]) {
      const down = path([...times].reverse(), [...bands[low]].reverse(), most, from, span).replace("M", "L");
      svg.append(draw("path", { class: "band", d: `${path(times, bands[high], most, from, span)}${down}Z` }));
    }
  }
  for (const line of lines) {
    svg.append(draw("path", { class: line.thin ? "line thin" : "line", d: path(times, line.values, most, from, span) }));
  }
  const caption = make("figcaption", {}, make("span", {}, title), make("b", {}, last === undefined ? "—" : show(last)));
  return make("figure", {}, caption, svg);
}

function showCharts() {
  const found = showsWhole ? whole : points;
  const of = (name) => found.map((point) => point[name]);
  const each = (what) => namesOf(found, what).map((name) => ({ values: of(name), thin: true }));
  const hasBands = (what) => found.some((point) => `${what} quantile 0.5` in point);
  const workers = hasBands("worker")
    ? chart("samples/s of workers (median, quartiles, extremes)", found,
      [{ values: of("worker quantile 0.5") }], number, { bands: quantiles(found, "worker") })
    : chart("samples/s of each worker (highest)", found, each("worker"), number);
  const ranks = hasBands("rank")
    ? chart("waiting of ranks (median, quartiles, extremes)", found,
      [{ values: of("rank quantile 0.5") }], percent, { top: 1, bands: quantiles(found, "rank") })
    : chart("waiting of each rank (most)", found, each("rank"), percent, { top: 1 });
  const cache = found.some((point) => point.cache > 0) ? [chart("cache", found, [{ values: of("cache") }], bytes)] : [];
  byId("charts").replaceChildren(
    chart("samples/s", found, [{ values: of("samples_per_second") }], number),
    chart("waiting for data, share of a step", found, [{ values: of("exposed") }], percent, { top: 1 }),
    workers,
    ranks,
    chart("samples in the pool", found, [{ values: of("pool") }], number),
    chart("memory of server and workers", found, [{ values: of("memory") }], bytes),
    chart("server busy", found, [{ values: of("server") }], percent, { top: 1 }),
    ...cache,
  );
}

function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map((column) =>
    make("th", { scope: "col", ...(column.isText ? {} : { class: "number" }) }, column.title)));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, index) => {
    const attributes = {};
    const kind = [columns[index].isText ? "" : "number", columns[index].isFile ? "file" : "", cell && cell.isBad ? "bad" : ""];
    const classes = kind.filter(Boolean).join(" ");
    if (classes) attributes.class = classes;
    const text = cell && cell.node ? cell.node : cell && cell.text !== undefined ? cell.text : String(cell);
    return index === 0 ? make("th", { scope: "row", ...attributes }, text) : make("td", attributes, text);
  })));
  const made = make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

const text = (title, isFile = false) => ({ title, isText: true, isFile });
const figure = (title) => ({ title, isText: false });

function showJobs(jobs) {
  const parts = jobs.flatMap((job) => {
    const about = job.is_estimate ? "about " : "";
    const share = job.share === null ? "" : `, ${about}${percent(job.share)} done`;
    const left = job.seconds_left === null ? "" : `, ${about}${time(job.seconds_left)} left`;
    const caption = `Job ${job.name}: pass ${Math.max(0, job.pass)}, batch ${number(job.batch)}${share}${left}, ${number(job.samples_per_second)} samples/s, `
      + `pool ${number(job.pool)} samples (${bytes(job.pool_bytes)})`
      + (job.ranks_to_come ? `, ${job.ranks_to_come} ranks did not come yet` : "");
    const rows = job.ranks.map((rank) => [
      rank.name,
      { text: rank.connected ? rank.state : "gone", isBad: !rank.connected },
      { text: rank.steps ? percent(rank.exposed) : "—", isBad: rank.exposed > 0.1 },
      rank.steps ? `${percent(rank.exposed_p50)} / ${percent(rank.exposed_p99)}` : "—",
      rank.steps ? time(rank.step_seconds) : "—",
      number(rank.batches_ahead),
      number(rank.steps),
      time(rank.silent_seconds),
      rank.process,
    ]);
    return [table(caption, [text("rank"), text("state"), figure("waits"), figure("p50 / p99"), figure("step"),
      figure("batches ahead"), figure("steps"), figure("last heard"), text("process")], rows)];
  });
  byId("jobs").replaceChildren(...(parts.length ? parts : [make("p", { class: "soft" }, "no trainer is attached")]));
}

function showWorkers(workers) {
  const slowest = Math.max(0, ...workers.map((worker) => worker.sample_seconds));
  const rows = workers.map((worker) => [
    worker.worker,
    worker.host,
    number(worker.samples_per_second),
    time(worker.busy_seconds),
    time(worker.storage_seconds),
    time(worker.idle_seconds),
    worker.memory ? bytes(worker.memory) : "—",
    worker.file === null ? "—" : worker.file,
    worker.sample === null ? "—" : number(worker.sample),
    { text: worker.file === null ? "—" : time(worker.sample_seconds), isBad: slowest > 5 && worker.sample_seconds === slowest },
  ]);
  byId("workers").replaceChildren(table("What each worker is doing", [text("worker"), text("host"), figure("samples/s"),
    figure("busy"), figure("waited for storage"), figure("waited for room"), figure("memory"), text("file", true),
    figure("sample"), figure("time in it")], rows));
}

function showHosts(hosts) {
  byId("hosts-section").hidden = !hosts.length;
  const rows = hosts.map((host) => [host.host, host.state, number(host.places), bytes(host.received_bytes),
    bytes(host.waiting_bytes || 0), number(host.rows_kept), `${number(host.round_trip_ms || 0, 1)} ms`, bytes(host.memory || 0)]);
  byId("hosts").replaceChildren(table("Other hosts that run workers", [text("host"), text("state"), figure("workers"),
    figure("received"), figure("waiting there"), figure("rows there"), figure("round trip"), figure("memory")], rows));
}

function showSamples(samples) {
  byId("samples-section").hidden = samples === null;
  if (samples === null) return;
  if (!samples.length) {
    byId("samples").replaceChildren(make("p", { class: "soft" }, "no batch is under way whose samples could be shown"));
    return;
  }
  const shown = JSON.stringify(samples);
  if (shown === lastSamples) return;  // pictures would flicker
  lastSamples = shown;
  byId("samples").replaceChildren(...samples.map((found) => {
    const title = `Job ${found.job}: samples of batch ${number(found.batch)} of pass ${number(found.pass)}`;
    const rows = found.rows.map((row, place) => [number(place), ...row.map((cell, slot) => {
      if (cell.text !== undefined) return cell.text;
      const source = `pictures/${encodeURIComponent(cell.picture)}?token=${encodeURIComponent(token)}`;
      return { node: make("img", { src: source, alt: `slot ${found.slots[slot]} of row ${place}` }) };
    })]);
    return table(title, [text("row"), ...found.slots.map((name) => text(name, true))], rows);
  }));
}

function showLosses(losses, events) {
  const found = losses.map(([what, count]) => `${number(count)} ${what}`);
  byId("losses").replaceChildren(make("p", { class: found.length ? "bad" : "soft" }, found.length ? found.join(", ") : "nothing was lost"));
  byId("events").replaceChildren(...[...events].reverse().map((event) =>
    make("li", {}, make("span", { class: "soft" }, `${time(event.seconds_ago)} ago  `),
      event.kind ? `${event.kind}: ${event.text}` : event.text)));
}

function show(found) {
  const view = found.view;
  byId("live").hidden = view === null;
  if (view === null) {
    showState(found.error || "the service was not seen yet", Boolean(found.error));
    return;
  }
  showState(found.error || `live, running for ${time(view.uptime_seconds)}`, Boolean(found.error));
  showAnswer(view.answer);
  showCharts();
  showJobs(view.jobs);
  showWorkers(view.workers);
  showHosts(view.hosts);
  showSamples(found.samples);
  showLosses(view.losses, view.events);
}

async function look() {
  const query = `&after=${latest}${showsWhole ? "&whole" : ""}`;
  const response = await fetch(`snapshot.json?token=${encodeURIComponent(token)}${query}`, { cache: "no-store" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  const found = await response.json();
  const fresh = found.points.filter((point) => point.time > latest);  // another look may have been quicker
  points = [...points, ...fresh].slice(-RECENT);
  if (found.whole) whole = found.whole;
  if (fresh.length) latest = fresh[fresh.length - 1].time;
  show(found);
}

async function repeat() {
  if (!document.hidden) {
    try {
      await look();
      failures = 0;
    } catch (error) {
      failures += 1;
      if (failures > 1) showState("the page has no connection to its server any more", true);
    }
  }
  setTimeout(repeat, LOOK_MS);
}

function choose(wholeRun) {
  showsWhole = wholeRun;
  byId("recent").setAttribute("aria-pressed", String(!wholeRun));
  byId("whole").setAttribute("aria-pressed", String(wholeRun));
  look().catch(() => {});
}

byId("recent").addEventListener("click", () => choose(false));
byId("whole").addEventListener("click", () => choose(true));
repeat();
