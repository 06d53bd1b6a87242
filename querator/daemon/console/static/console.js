// What a page does beyond HTML: times in the reader's time zone, values under the pointer in charts, and figures that
// stay fresh while somebody looks. Everything else works without it.
"use strict";

const MINUTE = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const SECOND = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const THIS_YEAR = new Intl.DateTimeFormat(undefined, SECOND);
const ANY_YEAR = new Intl.DateTimeFormat(undefined, { year: "numeric", ...SECOND });

function full(at) {
  return (at.getFullYear() === new Date().getFullYear() ? THIS_YEAR : ANY_YEAR).format(at);
}

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    time.title = time.textContent;
    time.textContent = full(new Date(time.dateTime));
  }
  for (const tick of root.querySelectorAll("text[data-at]")) {
    const at = new Date(tick.dataset.at * 1000);
    tick.textContent = (tick.dataset.form === "day" ? DAY : MINUTE).format(at);
  }
}

// Charts

function point(svg, place) {
  const points = svg.points ?? (svg.points = JSON.parse(svg.dataset.points));
  const figure = svg.closest("figure");
  const cursor = svg.querySelector(".cursor");
  const one = points[place];
  svg.place = place;
  for (const cell of figure.querySelectorAll("[data-series]")) {
    cell.textContent = one ? one[1 + Number(cell.dataset.series)] : "";
  }
  figure.querySelector(".at").textContent = one ? full(new Date(one[0] * 1000)) : "";
  const x = one ? position(svg, one[0]) : -9;
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
}

function position(svg, at) {
  const { begin, end, left, right } = svg.dataset;
  const width = svg.viewBox.baseVal.width - left - right;
  return Number(left) + width * (at - begin) / Math.max(1, end - begin);
}

function nearest(svg, event) {
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
  const points = svg.points ?? (svg.points = JSON.parse(svg.dataset.points));
  let best = -1;
  let distance = Infinity;
  points.forEach((one, place) => {
    const apart = Math.abs(position(svg, one[0]) - x);
    if (apart < distance) [best, distance] = [place, apart];
  });
  return best;
}

document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest?.("figure.chart svg");
  if (svg) point(svg, nearest(svg, event));
});
document.addEventListener("pointerout", (event) => {
  const svg = event.target.closest?.("figure.chart svg");
  if (svg && !svg.contains(event.relatedTarget)) point(svg, -1);
});
document.addEventListener("keydown", (event) => {
  const svg = event.target.closest?.("figure.chart svg");
  if (!svg || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const count = JSON.parse(svg.dataset.points).length;
  const from = svg.place >= 0 ? svg.place : count;
  point(svg, Math.min(count - 1, Math.max(0, from + (event.key === "ArrowLeft" ? -1 : 1))));
  event.preventDefault();
});

// Fresh figures: the page is loaded again, and its marked parts take the place of the old ones. The server renders them,
// so that nothing is put together here from what clients have sent.

const seconds = Number(document.body.dataset.live);
const status = document.getElementById("live");
let since = Date.now();
let timer = 0;

function tell(text, isOff) {
  status.hidden = false;
  status.textContent = text;
  status.classList.toggle("off", isOff);
}

function replace(fresh) {
  const focused = document.activeElement?.id;
  const shown = [...document.querySelectorAll("figure.chart svg")].map((svg) => svg.place ?? -1);
  for (const part of document.querySelectorAll("[data-fresh]")) {
    const next = fresh.getElementById(part.id);
    if (next) part.replaceWith(document.adoptNode(next));
    else part.hidden = true;
  }
  const charts = [...document.querySelectorAll("figure.chart svg")];
  charts.forEach((svg, number) => { if (shown[number] >= 0 && svg.matches(":hover")) point(svg, shown[number]); });
  localTimes(document);
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (answer.redirected) return location.reload();  // the session has ended: ask for the token
    if (!answer.ok) throw new Error(`the daemon answered ${answer.status}`);
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    since = Date.now();
    tell("live", false);
  } catch {
    tell(`no answer since ${full(new Date(since))}, trying again`, true);
  }
}

async function keepFresh() {
  await refresh();
  timer = setTimeout(keepFresh, seconds * 1000);
}

for (const all of document.querySelectorAll("input[data-all]")) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const one of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) one.checked = all.checked;
  });
}

localTimes(document);
if (seconds) {
  tell("live", false);
  timer = setTimeout(keepFresh, seconds * 1000);
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) keepFresh();
  });
}
