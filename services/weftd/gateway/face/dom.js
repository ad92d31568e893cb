// Elements and text. Everything that a page shows passes through `h` or `svg`: text becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";
const LINKS = /^(#|\/(?!\/)|blob:)/; // within this page or this host; "javascript:" and foreign hosts are refused

// An element. `props`: `class`, `dataset`, `style` (an object), `on…` (a listener), `ariaLabel` (-> aria-label),
// `value` and `checked` (properties); all others are attributes. null, undefined and false: left out.
export function h(tag, props = {}, ...children) {
  return dress(document.createElement(tag), props, children);
}

export function svg(tag, attrs = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attrs, children);
}

function dress(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value !== null && value !== undefined && value !== false) set(element, name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} must be a function`);
    element.addEventListener(name.slice(2).toLowerCase(), value);
  } else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "style") Object.assign(element.style, value); // CSSOM: allowed where style attributes are not
  else if (name === "value" || name === "checked") element[name] = value;
  else if (/^aria[A-Z]/.test(name)) element.setAttribute(`aria-${name.slice(4).toLowerCase()}`, String(value));
  else if (name === "href" && !LINKS.test(value)) throw new TypeError(`a link may not lead to ${value}`);
  else element.setAttribute(name === "htmlFor" ? "for" : name, value === true ? "" : String(value));
}

export function clear(element) {
  element.replaceChildren();
  return element;
}

// Texts of others as they are shown: control and direction characters become spaces, as in the CLI.
export function clean(text) {
  return String(text ?? "").replace(/[\p{Cc}\p{Bidi_Control}]/gu, " ");
}

// Formats; the words are those of the CLI.

const GROUPED = new Intl.NumberFormat("en", { useGrouping: "min2" }); // 20,018, but 2048

export function text(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "unknown";
  if (Number.isInteger(number) && Math.abs(number) < 1e15) return GROUPED.format(number);
  return String(Number(number.toPrecision(4)));
}

// A duration in seconds: "12s", "3m12s", "2h5m", "3d4h". Negative ones count as 0: clocks of two machines differ.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "unknown";
  const whole = Math.max(0, Math.floor(seconds));
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0s";
  const [unit, size] = units[first];
  const [next, nextSize] = units[first + 1] || ["", 1];
  const rest = next ? Math.floor((whole % size) / nextSize) : 0;
  return `${Math.floor(whole / size)}${unit}${rest ? `${rest}${next}` : ""}`;
}

// An age in one unit: "just now", "12s ago", "3m ago".
export function ago(seconds) {
  for (const [limit, unit, letter] of [[60, 1, "s"], [3600, 60, "m"], [172800, 3600, "h"]]) {
    if (seconds < limit) return seconds < 1 ? "just now" : `${Math.floor(seconds / unit)}${letter} ago`;
  }
  return `${Math.floor(seconds / 86400)}d ago`;
}

// A size in bytes: "512 MiB", "1.5 GiB".
export function bytes(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(number) >= 1024 && power < units.length - 1) {
    number /= 1024;
    power += 1;
  }
  return `${Number(number.toPrecision(3))} ${units[power]}`;
}

const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("sv-SE", { year: "numeric", month: "2-digit", day: "2-digit" });
const ZONE = new Intl.DateTimeFormat("en-GB", { timeZoneName: "shortOffset" });

// A moment (seconds since 1970) in this browser's time zone: "14:05:03", with its day if that is not today.
export function clock(seconds) {
  const then = new Date(seconds * 1000);
  if (Number.isNaN(then.getTime())) return "unknown";
  const day = DAY.format(then);
  return day === DAY.format(new Date()) ? TIME.format(then) : `${day} ${TIME.format(then)}`;
}

// A moment with its zone, for a place that tells a reader which one the page goes by: "14:05:03 UTC+2".
export function moment(seconds) {
  const then = new Date(seconds * 1000);
  if (Number.isNaN(then.getTime())) return "unknown";
  const zone = ZONE.formatToParts(then).find((part) => part.type === "timeZoneName")?.value ?? "";
  return `${clock(seconds)} ${zone.replace("GMT", "UTC").replace(/\+0$/, "")}`.trim();
}

export function count(number, noun) {
  return `${text(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function percent(part) {
  return part === null || part === undefined ? "unknown" : `${Math.round(part * 100)}%`;
}

// "8 GPUs", "8 emulated GPUs", "8 GPUs, 4 of them emulated": an emulated GPU is never passed off as hardware.
export function gpus(number, emulated) {
  if (emulated && emulated === number) return count(number, "emulated GPU");
  return count(number, "GPU") + (emulated ? `, ${emulated} of them emulated` : "");
}
