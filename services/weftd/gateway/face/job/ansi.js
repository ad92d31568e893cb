// What a job wrote, made harmless and split into lines: text and colours pass, nothing else does.
//
// The rules are those of `weft logs` on a terminal (libs/weft/domain/terminal.py): escape sequences other than colours are
// dropped, a carriage return ends a line, and text is never hidden. Colours become names of classes; true colours
// become the nearest of the sixteen that the style sheet has, so that they are readable in its theme.

const CONTROL = "(?:\\x1b\\[|\\x9b)[0-?]*[ -/]*"; // CSI, up to its last character
const STRING = "(?:\\x1b[\\]PX^_]|[\\x9d\\x90\\x98\\x9e\\x9f])[^\\x07\\x1b\\x90\\x98\\x9c-\\x9f\\n]*"; // OSC, DCS, …
const SEQUENCE = `${CONTROL}[@-~]|${STRING}(?:\\x07|\\x1b\\\\|\\x9c)|\\x1b[ -/]+[0-~]|\\x1b[0-Z\\\\\`-~]`;
const TOKEN = new RegExp(`${SEQUENCE}|\\r\\n|\\r|\\n`, "g");
const UNFINISHED = new RegExp(`(?:${CONTROL}|${STRING}\\x1b?|\\x1b[ -/]*|\\r)$`);
const COLOUR = /^(?:\x1b\[|\x9b)([0-9;:]*)m$/;
// Control characters, and characters that show text in another order than it has.
const DROPPED = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;

const HELD_MAX = 4096; // characters that may belong to a sequence whose end has not come
const PIECE = 65536; // characters that the patterns see at once
const PARAMETERS_MAX = 32; // of one sequence
export const LINE_MAX = 4000; // characters of one line that are shown

const PALETTE = [
  [0, 0, 0], [205, 0, 0], [0, 205, 0], [205, 205, 0], [0, 0, 238], [205, 0, 205], [0, 205, 205], [229, 229, 229],
  [127, 127, 127], [255, 0, 0], [0, 255, 0], [255, 255, 0], [92, 92, 255], [255, 0, 255], [0, 255, 255], [255, 255, 255],
];
const STEPS = [0, 95, 135, 175, 215, 255]; // of the colour cube

// Lines of a log that comes in pieces, which may end anywhere. A line is `{spans: [{text, look}], length, cut}`:
// `look` is a list of classes, `cut` how many characters are beyond LINE_MAX and not kept.
export class AnsiLines {
  #held = "";
  #style = plainStyle();
  #look = "";
  #line = emptyLine();

  // Takes in text; returns the lines that ended.
  feed(text) {
    const ended = [];
    for (let at = 0; at < text.length; at += PIECE) this.#take(text.slice(at, at + PIECE), false, ended);
    return ended;
  }

  // The rest, when no more comes.
  close() {
    const ended = [];
    this.#take("", true, ended);
    if (this.#line.length) ended.push(this.#endLine());
    return ended;
  }

  // The line that has not ended yet.
  get open() {
    return this.#line;
  }

  #take(piece, last, ended) {
    let text = this.#held + piece;
    this.#held = "";
    const tail = Math.max(0, text.length - HELD_MAX);
    const unfinished = last ? null : UNFINISHED.exec(text.slice(tail));
    if (unfinished) {
      this.#held = unfinished[0];
      text = text.slice(0, tail + unfinished.index);
    }
    let end = 0;
    for (const token of text.matchAll(TOKEN)) {
      this.#write(text.slice(end, token.index));
      end = token.index + token[0].length;
      const first = token[0][0];
      if (first === "\n" || first === "\r") ended.push(this.#endLine());
      else this.#colour(token[0]);
    }
    this.#write(text.slice(end));
  }

  #write(raw) {
    const text = raw.replace(DROPPED, "");
    if (!text) return;
    const line = this.#line;
    let shown = text.slice(0, Math.max(0, LINE_MAX - line.length));
    if (shown.length < text.length && isHighSurrogate(shown)) shown = shown.slice(0, -1);
    line.cut += text.length - shown.length;
    line.length += shown.length;
    if (line.cut && line.length < LINE_MAX) line.length = LINE_MAX;
    if (!shown) return;
    const before = line.spans.at(-1);
    if (before && before.look === this.#look) before.text += shown;
    else line.spans.push({ text: shown, look: this.#look });
  }

  #endLine() {
    const ended = this.#line;
    this.#line = emptyLine();
    return ended;
  }

  #colour(sequence) {
    const found = COLOUR.exec(sequence);
    if (!found) return;
    applyColours(this.#style, parametersOf(found[1]));
    this.#look = lookOf(this.#style);
  }
}

// All lines of a text that is complete.
export function linesOf(text) {
  const reader = new AnsiLines();
  return [...reader.feed(text), ...reader.close()];
}

function emptyLine() {
  return { spans: [], length: 0, cut: 0 };
}

function isHighSurrogate(text) {
  const code = text.charCodeAt(text.length - 1);
  return code >= 0xd800 && code <= 0xdbff;
}

function plainStyle() {
  return { text: null, back: null, bold: false, faint: false, italic: false, underline: false, struck: false, inverse: false };
}

// The parameters of a colour sequence; one with colons is a list of its own.
function parametersOf(text) {
  return text
    .split(";", PARAMETERS_MAX)
    .map((part) => (part.includes(":") ? part.split(":", PARAMETERS_MAX).map(Number) : Number(part || 0)));
}

function applyColours(style, parameters) {
  for (let at = 0; at < parameters.length; at += 1) {
    const value = parameters[at];
    if (Array.isArray(value)) {
      const numbers = value[1] === 2 && value.length > 5 ? [value[0], 2, ...value.slice(3)] : value; // with a colour space
      if (numbers[0] === 4) style.underline = numbers[1] !== 0;
      else setExtended(style, numbers[0], numbers.slice(1));
      continue;
    }
    if (value === 38 || value === 48 || value === 58) {
      const how = parameters[at + 1];
      const length = how === 5 ? 2 : how === 2 ? 4 : 0;
      setExtended(style, value, parameters.slice(at + 1, at + 1 + length));
      at += length;
      continue;
    }
    setSimple(style, value);
  }
}

function setExtended(style, which, numbers) {
  const colour = numbers[0] === 5 ? indexed(numbers[1]) : numbers[0] === 2 ? nearest(numbers.slice(1, 4)) : null;
  if (colour === null) return;
  if (which === 38) style.text = colour;
  if (which === 48) style.back = colour;
}

function setSimple(style, value) {
  if (value === 0) Object.assign(style, plainStyle());
  else if (value === 1) style.bold = true;
  else if (value === 2) style.faint = true;
  else if (value === 3) style.italic = true;
  else if (value === 4 || value === 21) style.underline = true;
  else if (value === 7) style.inverse = true;
  else if (value === 9) style.struck = true;
  else if (value === 22) style.bold = style.faint = false;
  else if (value === 23) style.italic = false;
  else if (value === 24) style.underline = false;
  else if (value === 27) style.inverse = false;
  else if (value === 29) style.struck = false;
  else if (value === 39) style.text = null;
  else if (value === 49) style.back = null;
  else if (value >= 30 && value <= 37) style.text = value - 30;
  else if (value >= 40 && value <= 47) style.back = value - 40;
  else if (value >= 90 && value <= 97) style.text = value - 82;
  else if (value >= 100 && value <= 107) style.back = value - 92;
}

// One of the 256 colours as one of the sixteen.
function indexed(index) {
  if (!(index >= 0 && index <= 255)) return null;
  if (index < 16) return index;
  if (index >= 232) return nearest([8 + 10 * (index - 232), 8 + 10 * (index - 232), 8 + 10 * (index - 232)]);
  const cube = index - 16;
  return nearest([STEPS[Math.floor(cube / 36)], STEPS[Math.floor(cube / 6) % 6], STEPS[cube % 6]]);
}

function nearest(rgb) {
  if (rgb.length < 3 || !rgb.every((part) => part >= 0 && part <= 255)) return null;
  let best = 0;
  let least = Infinity;
  PALETTE.forEach((colour, index) => {
    const distance = colour.reduce((sum, part, place) => sum + (part - rgb[place]) ** 2, 0);
    if (distance < least) [best, least] = [index, distance];
  });
  return best;
}

function lookOf(style) {
  const looks = [];
  if (style.text !== null) looks.push(`a-t${style.text}`);
  if (style.back !== null) looks.push(`a-b${style.back}`);
  for (const name of ["bold", "faint", "italic", "underline", "struck", "inverse"]) if (style[name]) looks.push(`a-${name}`);
  return looks.join(" ");
}
