// The list: filters, order, and the few rows of it that are in sight.
const ROW = 84; // px, as in the style
const byId = (id) => document.getElementById(id);
const list = byId("list");
const shown = { order: [], current: null, hits: null };

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const score = (value) => (value === null || value === undefined ? "–" : String(Math.round(value * 1000) / 1000));
const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
const verdict = (row) => (row.failed ? "bad" : row.score === null ? "unknown" : row.score < 1 ? "part" : "good");

const SORTS = {
  newest: (a, b) => b.step - a.step || a.number - b.number,
  oldest: (a, b) => a.step - b.step || a.number - b.number,
  worst: (a, b) => (a.score ?? 1e9) - (b.score ?? 1e9) || a.number - b.number,
  best: (a, b) => (b.score ?? -1e9) - (a.score ?? -1e9) || a.number - b.number,
  searches: (a, b) => b.searches - a.searches || a.number - b.number,
  longest: (a, b) => length(b) - length(a) || a.number - b.number,
  question: (a, b) => (a.question < b.question ? -1 : a.question > b.question ? 1 : a.number - b.number),
};
const length = (row) => (row.own ?? 0) + (row.retrieved ?? 0);

function haystack(row) {
  row.text ??= [row.question, row.pred, ...row.golds, ...row.queries].join("\n").toLowerCase();
  return row.text;
}

function applyFilters() {
  const bound = (id, fallback) => (byId(id).value === "" ? fallback : Number(byId(id).value));
  const [stepMin, stepMax] = [bound("step-min", -Infinity), bound("step-max", Infinity)];
  const [scoreMin, scoreMax] = [bound("score-min", -Infinity), bound("score-max", Infinity)];
  const [split, stop, searches] = ["split", "stop", "searches"].map((id) => byId(id).value);
  const text = byId("text").value.trim().toLowerCase();
  const hasScore = scoreMin > -Infinity || scoreMax < Infinity;
  shown.order = store.rows.filter((row) =>
    row.step >= stepMin && row.step <= stepMax
    && (!hasScore || (row.score !== null && row.score >= scoreMin && row.score <= scoreMax))
    && (split === "" || row.split === split)
    && (stop === "" || row.stop === stop)
    && (searches === "" || row.searches === Number(searches))
    && (!byId("failed").checked || row.failed)
    && (text === "" || haystack(row).includes(text) || (byId("deep").checked && shown.hits?.has(row.number))));
  shown.order.sort(SORTS[byId("sort").value]);
  byId("none").hidden = shown.order.length > 0 || store.rows.length === 0;
  showCount();
  drawList();
}

function showCount(note = "") {
  const few = shown.order.length < store.rows.length ? `${shown.order.length.toLocaleString("en")} of ` : "";
  const parts = [few + counted(store.rows.length, "rollout", "rollouts")];
  if (settings.live) parts.push("live");
  if (store.unreadable) parts.push(`${store.unreadable} lines unreadable`);
  byId("count").textContent = [...parts, note].filter(Boolean).join(" · ");
}

// Fills the choices of a filter with the values that occur, keeping what is chosen.
function fillChoices() {
  for (const [id, values] of [
    ["split", store.rows.map((row) => row.split)],
    ["stop", store.rows.map((row) => row.stop).filter(Boolean)],
    ["searches", store.rows.map((row) => row.searches)],
  ]) {
    const select = byId(id);
    const known = new Set([...select.options].map((option) => option.value));
    const fresh = [...new Set(values)].filter((value) => !known.has(String(value)));
    fresh.sort((a, b) => (a < b ? -1 : 1)).forEach((value) => select.append(new Option(value, value)));
  }
}

function drawList() {
  const rows = byId("rows");
  rows.style.height = `${shown.order.length * ROW}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(shown.order.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  rows.replaceChildren(...shown.order.slice(first, last).map((row, at) => listRow(row, first + at)));
  const active = shown.current && byId(`row-${shown.current.number}`);
  if (active) list.setAttribute("aria-activedescendant", active.id);
  else list.removeAttribute("aria-activedescendant");
}

function listRow(row, at) {
  const node = make("div", "row");
  node.id = `row-${row.number}`;
  node.setAttribute("role", "option");
  node.setAttribute("aria-selected", String(row === shown.current));
  node.setAttribute("aria-posinset", at + 1);
  node.setAttribute("aria-setsize", shown.order.length);
  node.style.top = `${at * ROW}px`;
  const badge = make("span", `badge ${verdict(row)}`, score(row.score));
  badge.title = "score";
  const facts = [
    `step ${row.step}`, row.split, counted(row.searches, "search", "searches"),
    row.stop.replace("_", " "), row.pred && `“${row.pred}”`,
  ];
  const body = make("div", "what");
  body.append(make("div", "question", row.question), make("div", "facts", facts.filter(Boolean).join(" · ")));
  node.append(badge, body);
  return node;
}

function scrollToRow(row) {
  const at = shown.order.indexOf(row);
  if (at < 0) return;
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  else if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
}

// Looks through the whole text of every rollout, block by block, and shows the hits as they are found.
async function searchDeep() {
  const wanted = byId("text").value.trim().toLowerCase();
  shown.hits = new Set();
  if (!wanted || !byId("deep").checked) return;
  const mine = shown.hits;
  for (const row of store.rows) {
    const page = await store.page(row);
    if (shown.hits !== mine) return; // another search has begun
    if ((page.blocks ?? []).some(([, text]) => text.toLowerCase().includes(wanted))) mine.add(row.number);
    if ((row.number + 1) % settings.chunk === 0 || row.number + 1 === store.rows.length) {
      applyFilters();
      showCount(row.number + 1 < store.rows.length ? `searching, ${row.number + 1} read` : "");
    }
  }
}
