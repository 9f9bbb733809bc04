// Ties list and page together: what is open, keys, the address, and following a live run.
document.querySelector("h1").textContent = document.title;

function setReading(on) {
  document.body.classList.toggle("reading", on);
  if (!on) list.focus();
  else if (!list.offsetParent) byId("page").focus(); // a narrow screen shows one of the two
}

function open(row, focus = true) {
  shown.current = row;
  if (focus && location.hash !== `#${row.number}`) history.pushState(null, "", `#${row.number}`);
  if (focus) setReading(true);
  scrollToRow(row);
  drawList();
  return drawPage(row);
}

function redraw() {
  if (shown.current) drawPage(shown.current);
}

function toggleMask() {
  view.mask = !view.mask;
  redraw();
}

function toggleGroup() {
  view.group = !view.group && shown.current && store.groupOf(shown.current).length > 1;
  redraw();
}

function step(by, wanted = () => true) {
  let at = shown.order.indexOf(shown.current) + (shown.current || by > 0 ? by : 0);
  while (at >= 0 && at < shown.order.length && !wanted(shown.order[at])) at += by;
  if (at >= 0 && at < shown.order.length) open(shown.order[at]);
}

function searchFor(text) {
  byId("text").value = text;
  filtersChanged();
  setReading(false);
}

function filtersChanged() {
  list.scrollTop = 0;
  applyFilters();
  searchDeep();
}

const KEYS = {
  n: () => step(1),
  p: () => step(-1),
  f: () => step(1, (row) => row.failed),
  m: toggleMask,
  g: toggleGroup,
  "/": () => { setReading(false); byId("text").focus(); },
  Escape: () => setReading(false),
};

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
  let action = KEYS[event.key];
  if (event.target === list) action ??= { ArrowDown: KEYS.n, ArrowUp: KEYS.p }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

list.addEventListener("scroll", () => requestAnimationFrame(drawList));
new ResizeObserver(drawList).observe(list);
list.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (row) open(store.rows[Number(row.id.slice(4))]);
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", filtersChanged);
byId("filters").addEventListener("reset", () => setTimeout(filtersChanged));
byId("more").open = matchMedia("(min-width: 900px)").matches;

function openFromAddress() {
  const row = store.rows[Number(location.hash.slice(1) || -1)];
  if (row) open(row);
}
addEventListener("hashchange", () => (location.hash ? openFromAddress() : setReading(false)));

// New rollouts above must not push away what is being looked at.
function keepPlace(change) {
  const first = shown.order[Math.floor(list.scrollTop / ROW)];
  const rest = list.scrollTop % ROW;
  change();
  if (list.scrollTop > 0 && shown.order.includes(first)) list.scrollTop = shown.order.indexOf(first) * ROW + rest;
}

async function read() {
  let again = 0;
  try {
    const { edition, rows } = store;
    const before = rows.length;
    const more = await readRows();
    if (store.edition !== edition) shown.current = null;
    if (store.rows.length !== before || store.rows !== rows || !before) {
      fillChoices();
      keepPlace(applyFilters);
    }
    if (!shown.current) openFromAddress();
    const comes = more && location.hash; // the rollout of the address may not have been read yet
    if (!shown.current && !comes && !document.body.classList.contains("reading") && shown.order.length) open(shown.order[0], false);
    again = settings.live && (more ? 1 : 2000);
  } catch (error) {
    showCount(`nothing new: ${error.message}`);
    again = settings.live && 5000;
  }
  if (again) setTimeout(read, again);
}
read();
