// The frame around the pages: who is signed in, which page is shown, the state of the stream, time and theme.

import { api, provider, request, signIn, signOut, stream } from "./api.js";
import { clear, clock, h } from "./dom.js";
import { live } from "./live.js";
import { session, signInForm } from "./session.js";
import { time, timeBar } from "./time.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

// Route -> the words in the navigation (empty: not in it) and its module, loaded when it is wanted. The first is the home page.
const PAGES = {
  mine: ["My work", () => import("./pages/mine.js")],
  cluster: ["Cluster", () => import("./pages/cluster.js")],
  queue: ["Queue", () => import("./pages/queue.js")],
  services: ["Services", () => import("./pages/services.js")],
  tenants: ["Tenants", () => import("./pages/tenants.js")],
  "what-if": ["What if", () => import("./pages/whatif.js")],
  health: ["Health", () => import("./pages/health.js")],
  admin: ["Admin", () => import("./pages/admin.js")],
  job: ["", () => import("./pages/job.js")],
  sweep: ["", () => import("./pages/sweep.js")],
  new: ["", () => import("./pages/new.js")],
};
const HOME = "mine";
const ADMINS = new Set(["admin"]); // pages that the navigation offers to administrators alone
const TITLES = { new: "New job" };
const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "weft.theme"; // index.html reads it

const root = document.getElementById("app");
let shown = null; // the page: {name, unmount}
let turn = 0; // of routing: an import that comes late must not replace a newer page
let failed = false; // the page could not be loaded or shown
let frame = null;

function start() {
  session.subscribe(enter);
  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || !frame) return;
    event.preventDefault();
    find();
  });
  time.subscribe(tellMoment);
  live.subscribe(tellStream);
  enter();
}

function enter() {
  leavePage();
  frame?.bar.end();
  frame = null;
  if (!session.proof) {
    live.end();
    time.set(null);
    clear(root).append(h("main", { id: "page" }, signInForm(signIn, provider)));
    document.title = "Sign in · Weft";
    return;
  }
  live.begin();
  frame = buildFrame();
  clear(root).append(...frame.parts);
  route();
}

function buildFrame() {
  const bar = timeBar();
  const banner = h("div", { class: "banner", role: "alert", hidden: true });
  const status = h("span", { class: "status", role: "status" }, "connecting");
  const account = h("summary", {}, "Account");
  const timeButton = h("button", {
    type: "button", ariaExpanded: "false", onclick: () => timeButton.setAttribute("aria-expanded", bar.toggle()),
  }, "Time");
  const themeButton = h("button", { type: "button", onclick: () => nextTheme(themeButton) }, `Theme: ${theme()}`);
  const links = Object.entries(PAGES).filter(([, [words]]) => words).map(([name, [words]]) =>
    h("a", { href: `#/${name}`, dataset: { page: name }, hidden: ADMINS.has(name) && !session.admin }, words));
  const main = h("main", { id: "page", tabindex: "-1" });
  const skip = h("a", { class: "skip", href: "#page", onclick: (event) => { event.preventDefault(); main.focus(); } },
    "Skip to the page");
  const pagesButton = h("button", { type: "button", class: "pages-button", ariaExpanded: "false", ariaLabel: "Menu", onclick: () => openPages() }, "☰");
  const openPages = (open = !header.classList.contains("open")) => {
    header.classList.toggle("open", open);
    pagesButton.setAttribute("aria-expanded", open);
  };
  const menu = h("details", { class: "account-menu" }, account, h("div", { class: "panel sheet" },
    themeButton, h("a", { href: "/v1/openapi.json" }, "API"), h("button", { type: "button", onclick: signOut }, "Sign out")));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    account.focus();
  });
  menu.addEventListener("focusout", (event) => { if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false; });
  const header = h("header", { class: "top" },
    skip, pagesButton, h("a", { class: "brand", href: `#/${HOME}` }, "weft"),
    h("nav", { ariaLabel: "Pages", onclick: () => openPages(false) }, links), h("span", { class: "grow" }), status,
    h("button", { type: "button", class: "find", onclick: find, title: "Jump to a page, job or node" }, "Find ", h("kbd", {}, isMac ? "⌘K" : "Ctrl K")),
    timeButton, menu);
  return { parts: [header, banner, bar.element, main], bar, banner, status, account, links, main, openPages };
}

// Jump to a page, job or node. The list is loaded when it is wanted.
async function find() {
  const { palette } = await import("./palette.js");
  palette({
    api, live, session, go,
    pages: Object.entries(PAGES).filter(([name, [words]]) => (words || TITLES[name]) && (session.admin || !ADMINS.has(name)))
      .map(([name, [words]]) => [words || TITLES[name], `#/${name}`]),
  });
}

// The page in the address: #/NAME/ID?PARAMS. An unknown name is the home page.
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const params = Object.fromEntries(new URLSearchParams(query));
  return { name: Object.hasOwn(PAGES, name) ? name : HOME, id: decoded(rest.join("/")), params };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a mistyped address: the API says that there is no such job
  }
}

function address(name, id, params) {
  const query = new URLSearchParams(params).toString();
  return `#/${name}${id ? `/${encodeURIComponent(id)}` : ""}${query ? `?${query}` : ""}`;
}

async function route() {
  if (!frame) return;
  const { name, id, params } = place();
  const at = params.at === undefined ? time.at : Number(params.at);
  delete params.at;
  const mine = (turn += 1);
  failed = false;
  leavePage();
  frame.openPages(false);
  time.set(at); // the moment stays the same from page to page
  tellMoment();
  for (const link of frame.links) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${PAGES[name][0] || TITLES[name] || `Job ${id}`} · Weft`;
  const context = { api, request, stream, session, live, time, go, setParams, params: { ...params, id } };
  const main = clear(frame.main);
  try {
    const module = await PAGES[name][1]();
    if (mine !== turn) return;
    shown = { name, ...module.mount(main, context) };
  } catch (error) {
    if (mine !== turn) return;
    console.error(error);
    failed = true;
    clear(main).append(h("section", { class: "panel" }, h("h1", {}, "This page failed"),
      h("p", {}, `The page “${PAGES[name][0] || name}” could not be shown: ${error.message}. The cluster is not affected; the command line shows the same.`),
      h("button", { type: "button", onclick: route }, "Try again")));
  }
}

// Keeps the moment in the address: a link to it shows the same.
function tellMoment() {
  const { name, id, params } = place();
  if (time.at === null) delete params.at;
  else params.at = String(time.at);
  history.replaceState(null, "", address(name, id, params));
}

function leavePage() {
  const page = shown;
  shown = null;
  try {
    page?.unmount?.();
  } catch (error) {
    console.error(error); // the next page is shown all the same
  }
}

function go(hash) {
  if (location.hash === hash) route();
  else location.hash = hash;
}

// Keeps a page's filters in the address without mounting it anew.
function setParams(params) {
  const { name, id } = place();
  const kept = Object.entries({ ...params, at: time.at ?? "" }).filter(([, value]) => value !== "" && value != null);
  history.replaceState(null, "", address(name, id, Object.fromEntries(kept)));
}

function tellStream() {
  if (!frame) return;
  const { status, banner, account } = frame;
  if (session.tenant) account.textContent = session.admin && session.tenant !== "admin" ? `${session.tenant}, administrator` : session.tenant;
  for (const link of frame.links) link.hidden = ADMINS.has(link.dataset.page) && !session.admin;
  if (status.dataset.is === live.status) return;
  status.dataset.is = live.status;
  status.textContent = { connecting: "connecting", live: "live", lost: "not live", refused: "not live" }[live.status];
  const since = live.state ? `showing what was at ${clock(live.state.at)}` : "nothing has come yet";
  const sentences = {
    lost: `Connection lost; ${since}; trying again.`,
    refused: `The gateway refuses the live stream: ${live.reason}; ${since}.`,
  };
  banner.textContent = sentences[live.status] || "";
  banner.hidden = !sentences[live.status];
  if (failed && live.status === "live") route(); // its module may not have come because the gateway was away
}

function theme() {
  try {
    const kept = localStorage.getItem(THEME_KEY);
    return THEMES.includes(kept) ? kept : "auto";
  } catch {
    return document.documentElement.dataset.theme || "auto";
  }
}

function nextTheme(button) {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  try {
    localStorage.setItem(THEME_KEY, next);
  } catch {
    // Storage may be forbidden: then the choice holds until the page is left.
  }
  applyTheme(next);
  button.textContent = `Theme: ${next}`;
}

function applyTheme(name) {
  document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("themechange")); // canvases take their colours anew
}

start();
