// Jump anywhere: pages, jobs that hold or wait, and nodes, by a few letters of their names.

import { clean, clear, h } from "./dom.js";

const SHOWN_MAX = 12;
const ASK_MS = 200;

export function palette({ api, live, session, go, pages }) {
  if (document.querySelector("dialog.palette")) return;
  let found = [];
  let at = 0;
  let timer = null;
  let request = new AbortController();
  const list = h("ul", { role: "listbox", id: "palette-list", ariaLabel: "Places" });
  const field = h("input", {
    type: "text", role: "combobox", ariaLabel: "Jump to a page, job or node", ariaControls: "palette-list", ariaExpanded: "true",
    placeholder: "Jump to a page, job or node", autocomplete: "off", spellcheck: "false", oninput: look, onkeydown: keyed,
  });
  const dialog = h("dialog", { class: "panel palette", ariaLabel: "Jump to" }, field, list);
  dialog.addEventListener("close", () => {
    clearTimeout(timer);
    request.abort();
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  look();

  function look() {
    const wanted = field.value.trim().toLowerCase();
    show(known(wanted));
    clearTimeout(timer);
    request.abort();
    if (wanted) timer = setTimeout(() => ask(wanted), ASK_MS);
  }

  // What this page knows without asking: pages, jobs that hold something, nodes.
  function known(wanted) {
    const has = (...texts) => texts.some((each) => each.toLowerCase().includes(wanted));
    const places = pages.filter(([words]) => has(words)).map(([words, href]) => ({ words, kind: "page", href }));
    if (!wanted) return places;
    const jobs = Object.entries(live.state?.jobs ?? {}).filter(([id, job]) => has(id, job.name))
      .map(([id, job]) => ({ words: job.name, kind: `job, ${job.state}`, href: jobHref(id) }));
    const nodes = (live.state?.nodes ?? []).filter((node) => has(node.id))
      .map((node) => ({ words: node.id, kind: "node", href: `#/cluster?find=${encodeURIComponent(node.id)}` }));
    return [...places, ...jobs.slice(0, SHOWN_MAX), ...nodes];
  }

  // Jobs that wait or are over are known to the gateway alone.
  async function ask(wanted) {
    request = new AbortController();
    const query = new URLSearchParams({ text: wanted, limit: "8", state: "queued,failed,succeeded,cancelled" });
    if (session.tenant && !session.admin) query.set("tenant", session.tenant);
    try {
      const { rows } = await api(`/v1/queue?${query}`, { signal: request.signal });
      const more = rows.map((row) => ({ words: row.name, kind: `job, ${row.state}`, href: jobHref(row.id) }));
      show([...known(wanted), ...more]);
    } catch {
      // What is known here is shown all the same.
    }
  }

  function show(places) {
    const seen = new Set();
    found = places.filter(({ href }) => !seen.has(href) && seen.add(href)).slice(0, SHOWN_MAX);
    at = Math.min(at, Math.max(0, found.length - 1));
    clear(list).append(...found.map((place, number) => h("li", {
      role: "option", id: `palette-${number}`, ariaSelected: number === at, onclick: () => open(place),
    }, h("span", {}, clean(place.words)), h("span", { class: "muted" }, clean(place.kind)))));
    if (!found.length) list.append(h("li", { class: "muted", role: "option", ariaSelected: "false", ariaDisabled: "true" }, "Nothing here has this name."));
    if (found.length) field.setAttribute("aria-activedescendant", `palette-${at}`);
    else field.removeAttribute("aria-activedescendant");
  }

  function keyed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      at = (at + step + found.length) % found.length;
      show(found);
      list.children[at].scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && found[at]) open(found[at]);
    else return;
    event.preventDefault();
  }

  function open(place) {
    dialog.close();
    go(place.href);
  }
}

function jobHref(id) {
  return `#/job/${encodeURIComponent(id)}`;
}
