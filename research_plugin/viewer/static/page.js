// A rollout's page, its loss mask token by token, and its group side by side.
const NAMES = { think: "Think", search: "Search", result: "Result", answer: "Answer", text: "Text" };
const LEVELS = [0.95, 0.8, 0.5, 0.25, 0.1]; // probabilities between the six shades of a trained token
const LONGEST_MARK = 1000; // no pattern can be made of a whole document
const view = { mask: false, group: false, drawing: 0 };

async function drawPage(row) {
  const mine = (view.drawing += 1);
  const article = byId("page");
  let content;
  try {
    const page = await store.page(row);
    if (page.gone) throw new Error(page.gone);
    content = view.group && store.groupOf(row).length > 1 ? await groupView(row) : rolloutView(row, page);
  } catch (error) {
    content = [make("p", "hint", `This rollout cannot be shown: ${error.message}`)];
  }
  if (mine !== view.drawing) return; // a later one has been asked for
  const pressed = article.contains(document.activeElement) && document.activeElement.textContent;
  article.replaceChildren(pageHead(row), ...content);
  article.querySelector(".here")?.scrollIntoView({ inline: "nearest" });
  article.scrollTop = 0;
  if (pressed) ([...article.querySelectorAll(".bar button")].find((each) => each.textContent === pressed) ?? article).focus();
}

function pageHead(row) {
  const head = make("div", "head");
  const back = button("← List", () => setReading(false), "back");
  const group = store.groupOf(row);
  const place = [`step ${row.step}`, row.split];
  if (group.length > 1) place.push(`rollout ${group.indexOf(row) + 1} of ${group.length} of its group`);
  head.append(back, make("p", "place", place.join(" · ")), make("h2", "", row.question));
  const bar = make("div", "bar");
  bar.append(toggle("Loss mask", view.mask, toggleMask), toggle(`Group of ${group.length}`, view.group, toggleGroup));
  bar.lastChild.disabled = group.length < 2 && !view.group;
  bar.append(button("This question everywhere", () => searchFor(row.question)));
  for (const [sign, name, by] of [["‹", "Previous rollout", -1], ["›", "Next rollout", 1]]) {
    const move = button(sign, () => step(by), "move");
    move.setAttribute("aria-label", name);
    bar.append(move);
  }
  head.append(bar);
  return head;
}

function button(text, action, className) {
  const node = make("button", className, text);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

function toggle(text, on, action) {
  const node = button(text, action);
  node.setAttribute("aria-pressed", String(on));
  return node;
}

function rolloutView(row, page) {
  const facts = make("dl", "facts");
  const fact = (name, value, className) => {
    if (value === "" || value === null || value === undefined) return;
    const box = make("div");
    box.append(make("dt", "", name), make("dd", className, value));
    facts.append(box);
  };
  fact("Score", score(row.score), verdict(row));
  fact("Why", page.reason);
  fact("Prediction", row.pred || (row.stop ? "none" : ""));
  fact("Golden answers", row.golds.join("  |  "));
  for (const [key, name] of [["f1", "F1"], ["em", "Exact match"], ["format_ok", "Format"]]) {
    if (page.scores[key] !== undefined) fact(name, score(page.scores[key]));
  }
  fact("Advantage", row.advantage === null ? "" : signed(row.advantage));
  fact("Searches", row.searches);
  fact("Own tokens", row.own);
  fact("Retrieved tokens", row.retrieved);
  fact("Ended by", row.stop.replace("_", " "));
  const parts = [facts, view.mask ? maskView(page) : blocksView(page, row.golds)];
  if (page.prompt) parts.push(fold("Prompt", make("pre", "", page.prompt)));
  const rest = Object.entries({ ...page.scores, ...page.metrics }).map(([key, value]) => `${key}: ${score(value)}`);
  const names = [page.id && `id: ${page.id}`, page.source && `data source: ${page.source}`, page.method && `method: ${page.method}`];
  parts.push(fold("All numbers", make("pre", "", [...names.filter(Boolean), ...rest].join("\n"))));
  return parts;
}

const signed = (value) => (value > 0 ? "+" : "") + score(value).replace("-", "−");

function fold(title, content, open = false) {
  const node = make("details", "fold");
  node.open = open;
  node.append(make("summary", "", title), content);
  return node;
}

function blocksView(page, golds, unfolded = true) {
  const node = make("div", "blocks");
  for (const [kind, text, documents] of page.blocks) {
    const block = make("section", `block ${kind}`);
    block.setAttribute("aria-label", NAMES[kind]);
    block.append(make("h3", "", NAMES[kind]));
    if (documents.length) block.append(...documents.map((each, at) => documentView(each, at, golds, unfolded)));
    else block.append(said(kind, text.trim(), golds));
    node.append(block);
  }
  return node;
}

// A block's text with its tags faint; a block that was cut off has no closing one.
function said(kind, text, golds) {
  const node = make("div", "said");
  const [, opening, inner, closing] = (kind === "text" ? null : /^(<[^<>]{1,30}>)?([^]*?)(<[^<>]{1,30}>)?$/.exec(text)) ?? [, "", text, ""];
  if (opening) node.append(make("span", "tag", opening));
  marked(node, inner, kind === "result" || kind === "answer" ? golds : []);
  if (closing) node.append(make("span", "tag", closing));
  return node;
}

function documentView(each, at, golds, unfolded) {
  const [title, ...lines] = each.contents.split("\n");
  const body = marked(make("div", "said"), lines.join("\n") || title, golds);
  const node = fold("", body, unfolded);
  const summary = node.firstChild;
  summary.append(make("span", "rank", `${at + 1}`), make("span", "", lines.length ? title : `document ${each.id}`));
  const found = body.querySelector("mark") || golds.some((gold) => gold && title.toLowerCase().includes(gold.toLowerCase()));
  if (found) summary.append(make("span", "found", "holds the answer"));
  return node;
}

// Appends text to node with every golden answer marked.
function marked(node, text, golds) {
  const wanted = golds.filter((gold) => gold.trim() && gold.length < LONGEST_MARK).map((gold) => gold.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) {
    node.append(text);
    return node;
  }
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(${wanted.join("|")})(?![\\p{L}\\p{N}])`, "giu");
  text.split(pattern).forEach((part, at) => node.append(at % 2 ? make("mark", "", part) : part));
  return node;
}

function maskView(page) {
  const node = make("div", "mask");
  const legend = make("p", "legend");
  legend.append(make("span", "token own l0", "trained on"), " ", make("span", "token own l5", "trained on, was unlikely"), " ");
  legend.append(make("span", "token env", "not trained on"));
  const body = make("div", "tokens");
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", "Response by token");
  if (page.tokens) {
    const { texts, mask, log_probs: logProbs } = page.tokens;
    const count = mask.reduce((sum, value) => sum + value, 0);
    legend.append(` ${count} of ${mask.length} tokens are trained on.`);
    texts.forEach((text, at) => body.append(token(text, mask[at], logProbs?.[at])));
  } else {
    legend.append(" Tokens of this rollout were not recorded; shown by who wrote what.");
    for (const [kind, text] of page.blocks) body.append(make("span", kind === "result" ? "piece env" : "piece own", text));
  }
  node.append(legend, body);
  return node;
}

function token(text, trained, logProb) {
  const node = make("span", trained ? "token own" : "token env", text);
  if (text.includes("\n") && !text.trim()) node.classList.add("break");
  if (trained && Number.isFinite(logProb)) {
    const probability = Math.exp(logProb);
    node.classList.add(`l${LEVELS.filter((level) => probability < level).length}`);
    node.title = `trained on · p ${probability.toPrecision(3)} · log p ${logProb.toFixed(3)}`;
  } else node.title = trained ? "trained on" : "not trained on";
  return node;
}

async function groupView(row) {
  const rows = store.groupOf(row);
  const pages = await Promise.all(rows.map((each) => store.page(each)));
  const scores = rows.map((each) => each.score).filter((value) => value !== null);
  const mean = scores.reduce((sum, value) => sum + value, 0) / (scores.length || 1);
  const spread = Math.sqrt(scores.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (scores.length || 1));
  const note = `Golden answers: ${row.golds.join(" | ")} · mean score ${score(mean)}, spread ${score(spread)}`
    + (spread === 0 ? ": the group teaches GRPO nothing" : "");
  const columns = make("div", "columns");
  columns.tabIndex = 0;
  columns.setAttribute("role", "group");
  columns.setAttribute("aria-label", "Rollouts of the group side by side");
  rows.forEach((each, at) => {
    const column = make("section", each === row ? "column here" : "column");
    column.setAttribute("aria-label", `Rollout ${at + 1}`);
    const head = make("div", "column-head");
    const numbers = [each.advantage !== null && `advantage ${signed(each.advantage)}`, counted(each.searches, "search", "searches"),
      each.own !== null && `${each.own} own tokens`, each.stop.replace("_", " ")];
    head.append(make("span", `badge ${verdict(each)}`, score(each.score)), button(`Rollout ${at + 1}`, () => { view.group = false; open(each); }));
    column.append(head, make("p", "facts", numbers.filter(Boolean).join(" · ")));
    column.append(view.mask ? maskView(pages[at]) : blocksView(pages[at], each.golds, false));
    columns.append(column);
  });
  return [make("p", "note", note), columns];
}
