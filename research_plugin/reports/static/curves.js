// Small diagrams of the same runs, side by side; pointing at a step shows its values in all of them.
const { panels, runs } = JSON.parse(document.documentElement.dataset.settings);
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 200, 44, 10, 8, 22];
const SPLITS = ["train", "val"];
const hidden = new Set();
let cursor = null;

const byId = (id) => document.getElementById(id);
const steps = [...new Set(runs.flatMap((run) => SPLITS.flatMap((split) =>
  panels.flatMap(({ key }) => run[split][key].map(([step]) => step)))))].sort((a, b) => a - b);
const [firstStep, lastStep] = [steps[0], Math.max(steps[steps.length - 1], steps[0] + 1)];
const x = (step) => LEFT + ((step - firstStep) / (lastStep - firstStep)) * (WIDTH - LEFT - RIGHT);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  if (text !== undefined) node.textContent = text;
  return node;
}

const short = (value) => String(Number(value.toPrecision(4)));

// Round numbers that cover low..high in about four parts.
function ticks(low, high) {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.floor(low / size + 1e-9);
  const count = Math.ceil(high / size - 1e-9) - first || 1;
  return Array.from({ length: count + 1 }, (_, at) => (first + at) * size);
}

function lines(key) {
  return runs.flatMap((run, number) => (hidden.has(number) ? [] : SPLITS
    .map((split) => ({ run, number, split, points: run[split][key] }))
    .filter(({ points }) => points.length)));
}

function drawPanel({ key, title }) {
  const card = make("section", "card");
  card.setAttribute("aria-label", title);
  const shown = lines(key);
  const values = shown.flatMap(({ points }) => points.map(([, value]) => value));
  const marks = ticks(Math.min(0, ...values), Math.max(...values, Math.min(0, ...values) + 1e-6));
  const [low, high] = [marks[0], marks[marks.length - 1]];
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(title, shown) });
  for (const mark of marks) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }));
    svg.append(shape("text", { class: "axis", x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  for (const mark of ticks(firstStep, lastStep).filter((step) => step >= firstStep && step <= lastStep && Number.isInteger(step))) {
    svg.append(shape("text", { class: "axis", x: x(mark), y: HEIGHT - 6, "text-anchor": "middle" }, mark));
  }
  for (const { number, split, points } of shown) {
    const path = points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    svg.append(shape("polyline", { class: `curve ${split} run${number}`, points: path }));
    if (split === "val" || points.length === 1) {
      points.forEach(([step, value]) => svg.append(shape("circle", { class: `dot run${number}`, cx: x(step), cy: y(value), r: 2.6 })));
    }
  }
  svg.append(shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM }));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    showStep(steps.reduce((best, step) => (Math.abs(x(step) - at) < Math.abs(x(best) - at) ? step : best), firstStep));
  });
  card.append(make("h2", "", title), svg, make("ul", "values"));
  return card;
}

function summary(title, shown) {
  const ends = shown.map(({ run, split, points }) =>
    `${run.name}, ${split === "train" ? "training" : "validation"}: from ${short(points[0][1])} to ${short(points[points.length - 1][1])}`);
  return `${title} against the step. ${ends.join("; ")}`;
}

function showStep(step) {
  cursor = step;
  byId("step").textContent = step === null ? "" : `Step ${step}`;
  document.querySelectorAll(".card").forEach((card, at) => {
    const line = card.querySelector(".cursor");
    line.classList.toggle("on", step !== null);
    if (step !== null) ["x1", "x2"].forEach((name) => line.setAttribute(name, x(step)));
    const items = lines(panels[at].key).flatMap(({ run, number, split, points }) => {
      const point = points.find(([each]) => each === step) ?? (step === null ? points[points.length - 1] : null);
      if (!point) return [];
      const item = make("li", `run${number}`);
      item.append(make("span", `line ${split}`), make("b", "", short(point[1])), make("span", "name", runs.length > 1 ? run.name : ""));
      item.title = `${run.name}, ${split === "train" ? "training" : "validation"}, step ${point[0]}`;
      return [item];
    });
    card.querySelector(".values").replaceChildren(...items);
  });
}

function draw() {
  byId("panels").replaceChildren(...panels.map(drawPanel));
  const kept = cursor;
  showStep(null);
  // A step at which some runs have no value must not move what lies below.
  document.querySelectorAll(".values").forEach((list) => { list.style.minHeight = `${list.offsetHeight}px`; });
  showStep(kept);
}

runs.forEach((run, number) => {
  const button = make("button", `run${number}`, run.name);
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    if (!hidden.delete(number)) hidden.add(number);
    button.setAttribute("aria-pressed", String(!hidden.has(number)));
    draw();
  });
  byId("legend").append(button);
});

addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") showStep(null);
  if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const at = cursor === null ? (by > 0 ? -1 : steps.length) : steps.indexOf(cursor);
  showStep(steps[Math.min(steps.length - 1, Math.max(0, at + by))]);
});
byId("panels").addEventListener("pointerleave", () => showStep(null));
draw();
