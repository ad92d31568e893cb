// Admin: nodes, tokens, people, quotas, webhooks, names of secrets, and the audit log. What cannot be undone asks first, and
// names what it would do; what has no button here has its command.

import { ApiError } from "../api.js";
import { ago, bytes, clean, count, h, moment, text } from "../dom.js";
import { ask, toast } from "../notice.js";
import { failureText, repeat, section, slot, table } from "../parts.js";
import { tabs } from "../tabs.js";
import { commandToCopy, emptyView } from "../words.js";

const EVERY_MS = 10_000;
const ROWS_MAX = 500;
const AUDIT_ROWS = 100;
const DAY_SECONDS = 86400;
const NAMES = new Intl.Collator("en", { numeric: true });

export function mount(root, { api, live, session, params, setParams }) {
  const parts = {
    nodes: { words: "Nodes", path: "/v1/nodes", show: nodesParts },
    tokens: { words: "Tokens", path: "/v1/tokens", show: tokensParts },
    people: { words: "People", path: "/v1/people", show: peopleParts },
    quotas: { words: "Quotas", path: "/v1/quotas", show: quotasParts },
    webhooks: { words: "Webhooks", path: "/v1/webhooks", show: webhooksParts },
    secrets: { words: "Secrets", path: "/v1/secrets", show: secretsParts },
    audit: { words: "Audit", path: `/v1/audit?limit=${AUDIT_ROWS}`, show: auditParts },
  };
  const slots = Object.fromEntries(Object.keys(parts).map((name) => [name, slot("div", { class: "stack" })]));
  const pages = tabs("Parts of the administration", Object.fromEntries(Object.entries(parts).map(([name, { words }]) => [name, [words, slots[name].element]])), {
    first: params.tab, onShow: (name) => {
      setParams({ tab: name });
      work.soon();
    },
  });
  const said = slot("p", { class: "bad", role: "alert" });
  root.append(h("div", { class: "stack" }, h("h1", {}, "Admin"), said.element, pages.element));
  const work = repeat(refresh, EVERY_MS);

  async function refresh(signal) {
    const name = pages.shown;
    try {
      const view = await api(parts[name].path, { signal });
      slots[name].show(view, parts[name].show);
      said.show("", () => "");
    } catch (error) {
      if (signal.aborted) return;
      const words = error.status === 403 ? "Only an administrator sees this." : failureText(error);
      said.show(words, (sentence) => sentence);
    }
  }

  // Asks the gateway for something, and says what became of it.
  async function act(path, method, words, body) {
    try {
      const answer = await api(path, { method, ...(body ? { body } : {}) });
      toast(words);
      work.soon();
      return answer;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      toast(failureText(error), "bad");
      return null;
    }
  }

  function nodesParts({ nodes }) {
    if (!nodes.length) return section("Nodes", emptyView("No node has joined", "`weft doctor` on a machine lists what it needs to become a node.", "weft doctor"));
    const rows = [...nodes].sort((a, b) => NAMES.compare(a.id, b.id)).slice(0, ROWS_MAX).map((node) => [
      h("a", { href: `#/cluster?find=${encodeURIComponent(node.id)}` }, clean(node.id)), clean(node.pool), stateOf(node),
      text((node.gpus ?? []).length), `${text(Math.round(node.cpus_allocated))} of ${text(node.cpus)}`, `${bytes(node.memory_allocated)} of ${bytes(node.memory)}`,
      node.drained
        ? button("Resume", node.id, () => act(nodePath(node.id, "resume"), "POST", `${node.id} will take jobs again.`))
        : button("Drain", node.id, () => drain(node)),
    ]);
    return section("Nodes", table("Nodes", ["Node", "Pool", "State", "#GPUs", "CPUs held", "Memory held", ""], rows));
  }

  async function drain(node) {
    const reason = h("input", { id: "drain-reason", maxlength: "200", autocomplete: "off" });
    const evict = h("input", { type: "checkbox", id: "drain-evict" });
    const running = live.node(node.id)?.gpus.filter((gpu) => gpu.holders.length).length ?? 0;
    const yes = await ask({
      title: `Drain ${clean(node.id)}`, yes: `Drain ${clean(node.id)}`, danger: true,
      sentence: `It takes no new job until it is resumed. ${count(running, "of its GPU")} ${running === 1 ? "is" : "are"} held now.`,
      fields: [h("div", { class: "field" }, h("label", { htmlFor: "drain-reason" }, "Reason, shown to people"), reason),
        h("label", { class: "tick row", htmlFor: "drain-evict" }, evict, "move the jobs that run there elsewhere")],
    });
    if (!yes) return;
    const query = new URLSearchParams(evict.checked ? { evict: "1" } : {});
    if (reason.value.trim()) query.set("reason", reason.value.trim());
    await act(`${nodePath(node.id, "drain")}?${query}`, "POST", `${node.id} takes no new job.`);
  }

  function tokensParts({ tokens }) {
    const rows = tokens.slice(0, ROWS_MAX).map((token) => [
      clean(token.label), clean(token.tenant), token.admin ? "administrator" : "tenant", moment(token.created_at),
      token.used_at ? ago(live.now() - token.used_at) : "never", token.expires_at ? moment(token.expires_at) : "until revoked",
      button("Revoke", `${token.label} of ${token.tenant}`, () => revoke(token), true),
    ]);
    return section("Tokens", h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: makeToken }, "New token")),
      rows.length ? table("Valid tokens", ["Label", "Tenant", "Of", "Made", "Used", "Expires", ""], rows) : emptyView("There is no valid token", "A token lets a program or a person in.", "weft token create TENANT"));
  }

  async function makeToken() {
    const tenant = h("input", { id: "token-tenant", autocomplete: "off", spellcheck: "false" });
    const label = h("input", { id: "token-label", autocomplete: "off", spellcheck: "false" });
    const days = h("input", { id: "token-days", type: "number", min: "1", max: "366", value: "90" });
    const field = (words, control) => h("div", { class: "field" }, h("label", { htmlFor: control.id }, words), control);
    const fields = [field("Tenant", tenant), field("Label, by which it is revoked", label), field("Days until it expires", days)];
    if (!await ask({ title: "New token", fields, yes: "Make the token" })) return;
    const body = { tenant: tenant.value.trim(), label: label.value.trim(), ...(days.value ? { expires_in: Number(days.value) * DAY_SECONDS } : {}) };
    const made = await act("/v1/tokens", "POST", "The token is made.", body);
    if (made) await ask({ title: `Token ${clean(made.label)} of ${clean(made.tenant)}`, sentence: "It is shown this once.", fields: [commandToCopy(made.token)], yes: "I have copied it", no: "Close" });
  }

  async function revoke(token) {
    const yes = await ask({
      title: `Revoke ${clean(token.label)} of ${clean(token.tenant)}`, yes: `Revoke ${clean(token.label)}`, danger: true,
      sentence: "It is refused everywhere within seconds, and its open streams end. This cannot be undone.",
    });
    if (yes) await act(`/v1/tokens/${encodeURIComponent(token.tenant)}/${encodeURIComponent(token.label)}`, "DELETE", `${token.label} is revoked.`);
  }

  function peopleParts({ people }) {
    if (!people.length) return section("People", emptyView("Nobody has signed in with single sign-on", "People who do are listed here.", "weft user list"));
    return section("People", table("People", ["Name", "Tenant", "Role", "Signed in", "Id"], people.slice(0, ROWS_MAX).map((one) => [
      clean(one.name), clean(one.tenant), one.disabled_at ? h("strong", { class: "bad" }, "disabled") : clean(one.role), moment(one.signed_in_at), h("code", {}, clean(one.id)),
    ])), commandToCopy("weft user disable ID"));
  }

  function quotasParts({ quotas }) {
    if (!quotas.length) return section("Quotas", emptyView("No quota is set", "Every tenant may hold all free GPUs. A quota guarantees GPUs to a tenant and limits it.", "weft quota set TENANT --guaranteed 8 --limit 16"));
    return section("Quotas", table("Quotas", ["Name", "Group", "#Guaranteed", "#Limit", "#Weight"], quotas.map((one) => [
      `${clean(one.name)}${one.is_group ? " (group)" : ""}`, clean(one.group), text(one.guaranteed), one.limit === null || one.limit === undefined ? "none" : text(one.limit), text(one.weight),
    ])), commandToCopy("weft quota set TENANT --guaranteed 8 --limit 16"));
  }

  function webhooksParts({ webhooks }) {
    if (!webhooks.length) return section("Webhooks", emptyView("No webhook is set", "A webhook posts the events of jobs to an address.", "weft webhook add https://example.org/hook"));
    return section("Webhooks", table("Webhooks", ["Address", "Tenant", "Events", "#Delivered", "State", ""], webhooks.map((one) => [
      clean(one.url), one.all_tenants ? "all" : clean(one.tenant), clean((one.events ?? []).join(", ")) || "all", text(one.delivered ?? 0),
      one.off ? h("strong", { class: "bad" }, clean(one.off)) : one.failures ? h("strong", { class: "warn" }, count(one.failures, "failed try").replace("trys", "tries")) : "delivers",
      button("Remove", one.url, async () => {
        if (await ask({ title: "Remove the webhook", sentence: `Nothing more is posted to ${clean(one.url)}.`, yes: "Remove it", danger: true })) {
          await act(`/v1/webhooks/${encodeURIComponent(one.id)}`, "DELETE", "The webhook is removed.");
        }
      }, true),
    ])));
  }

  function secretsParts({ secrets }) {
    if (!secrets.length) return section("Secrets", emptyView("No secret is stored", `A secret is a value that jobs of tenant ${clean(session.tenant)} may use by its name.`, "weft secret set NAME"));
    return section("Secrets", h("p", { class: "muted" }, `Of tenant ${clean(session.tenant)}. Values are never shown.`), table("Secrets", ["Name", "Made", "Changed"], secrets.map((one) => [
      clean(one.name), moment(one.created_at), moment(one.updated_at),
    ])));
  }

  function auditParts({ entries }) {
    if (!entries.length) return section("Audit", emptyView("The audit log is empty", "Sign-ins and acts of administrators are listed here.", "weft audit"));
    return section("Audit", table("Audit log, the newest last", ["At", "Who", "Tenant", "Act", "Outcome", "Detail"], entries.map((one) => [
      moment(one.at), clean(one.who), clean(one.tenant), clean(one.act), clean(one.outcome), clean(one.detail ?? ""),
    ])));
  }

  return { unmount: () => work.stop() };
}

function stateOf(node) {
  if (!node.ready) return h("strong", { class: "bad" }, "lost");
  if (node.drained) return h("strong", { class: "warn" }, `drained${node.drain?.reason ? `: ${clean(node.drain.reason)}` : ""}`);
  return node.silent_seconds ? h("strong", { class: "warn" }, "silent") : h("span", { class: "ok" }, "ready");
}

function nodePath(id, deed) {
  return `/v1/nodes/${encodeURIComponent(id)}/${deed}`;
}

function button(words, what, deed, danger = false) {
  return h("button", { type: "button", class: `small${danger ? " danger" : ""}`, ariaLabel: `${words} ${clean(what)}`, onclick: deed }, words);
}
