// A JSON value as YAML that Weft, and every reader of YAML 1.1 or 1.2, takes for the same value.
//
// Text is quoted whenever a reader might take it for something else than text.

const PLAIN = /^[A-Za-z_/][A-Za-z0-9_/.-]*$/; // words and paths, which no reader takes for anything else …
const SPECIAL = /^(y|n|yes|no|on|off|true|false|null|nan|inf|infinity)$/i; // … but for these
// Legal in JSON's text, not in every YAML's; and what shows text in another order than it has, or not at all.
const ESCAPED = /[\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/g;
const PAIR = /[\ud800-\udbff][\udc00-\udfff]/g;
const DEPTH_MAX = 64;

// The value as a YAML document that ends with a line break.
export function toYaml(value) {
  if (isEmptyOrScalar(value)) return `${inline(value)}\n`;
  return `${block(value, 0).join("\n")}\n`;
}

// The lines of a list or a mapping that is not empty.
function block(value, depth) {
  if (depth > DEPTH_MAX) throw new RangeError("nested too deeply for YAML");
  const lines = [];
  if (Array.isArray(value)) {
    for (const item of value) {
      if (isEmptyOrScalar(item)) lines.push(`- ${inline(item)}`);
      else block(item, depth + 1).forEach((line, place) => lines.push(`${place ? "  " : "- "}${line}`));
    }
    return lines;
  }
  for (const [name, item] of entriesOf(value)) {
    if (isEmptyOrScalar(item)) lines.push(`${text(name)}: ${inline(item)}`);
    else lines.push(`${text(name)}:`, ...block(item, depth + 1).map((line) => `  ${line}`));
  }
  return lines;
}

function entriesOf(value) {
  return Object.entries(value).filter(([, item]) => item !== undefined);
}

function isEmptyOrScalar(value) {
  if (value === null || typeof value !== "object") return true;
  return (Array.isArray(value) ? value : entriesOf(value)).length === 0;
}

function inline(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "object") return Array.isArray(value) ? "[]" : "{}";
  if (typeof value === "boolean") return String(value);
  if (typeof value === "number") return number(value);
  return text(String(value));
}

// A number: readers of YAML 1.1 want a point before the exponent.
function number(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? ".nan" : value > 0 ? ".inf" : "-.inf";
  if (Object.is(value, -0)) return "-0.0";
  const written = String(value);
  return written.includes("e") && !written.includes(".") ? written.replace("e", ".0e") : written;
}

function text(value) {
  if (value.length < 256 && PLAIN.test(value) && !SPECIAL.test(value)) return value;
  // JSON's text is YAML's double-quoted text, but for some characters; pairs of surrogates stay as they are.
  const pairs = [];
  const kept = JSON.stringify(value).replace(PAIR, (pair) => {
    pairs.push(pair);
    return "\u0000";
  });
  const quoted = kept.replace(ESCAPED, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return quoted.replace(/\u0000/g, () => pairs.shift());
}
