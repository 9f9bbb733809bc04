// Where rollouts come from: blocks of compressed JSON in this page, or the server that sent the page.
// Everything read here is text to show; nothing of it ever becomes HTML.
const settings = JSON.parse(document.documentElement.dataset.settings);
const KEPT = 12; // decoded blocks in memory

const store = {
  rows: [],
  groups: new Map(),
  unreadable: 0,
  edition: 0,
  chunks: new Map(),

  clear() {
    this.rows = [];
    this.groups.clear();
    this.chunks.clear();
  },

  add(values) {
    for (const list of values) {
      const row = { number: this.rows.length, group: list[settings.columns.length] };
      settings.columns.forEach((name, at) => { row[name] = list[at]; });
      this.rows.push(row);
      if (row.group < 0) continue;
      if (!this.groups.has(row.group)) this.groups.set(row.group, []);
      this.groups.get(row.group).push(row);
    }
  },

  groupOf(row) {
    const rows = this.groups.get(row.group) ?? [row];
    return [...rows].sort((a, b) => a.session - b.session || a.number - b.number);
  },

  // Resolves to the page of a rollout. A block of a live run may have grown since it was read.
  async page(row) {
    const number = Math.floor(row.number / settings.chunk);
    const at = row.number % settings.chunk;
    let pages = await this.chunks.get(number);
    if (!pages || pages.length <= at) {
      const promise = readChunk(number);
      this.chunks.set(number, promise);
      promise.catch(() => this.chunks.delete(number));
      if (this.chunks.size > KEPT) this.chunks.delete(this.chunks.keys().next().value);
      pages = await promise;
    }
    return pages[at];
  },
};

async function readChunk(number) {
  return settings.live ? fetchJson(`chunk?n=${number}`) : unpack(`chunk-${number}`);
}

async function unpack(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function fetchJson(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: the server answered ${response.status}`);
  return response.json();
}

// Reads what is new; resolves to whether more waits to be read at once.
async function readRows() {
  if (!settings.live) {
    store.add(await unpack("all-rows"));
    return false;
  }
  const answer = await fetchJson(`rows?from=${store.rows.length}&edition=${store.edition}`);
  if (answer.edition !== store.edition) store.clear();
  store.edition = answer.edition;
  store.add(answer.rows);
  store.unreadable = answer.unreadable;
  return answer.more;
}
