// Live updates, keys and small helps. Every page reads and every form works without this file.
"use strict";
(() => {
  const body = document.body;
  const state = document.getElementById("live-state");
  const pause = document.getElementById("live-pause");
  let paused = false, wanted = 0, shown = Number(body.dataset.version || 0), busy = false, changedByHand = false;

  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };

  // -- times: the reader's own clock stands beside UTC
  const localTimes = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!time.title.includes("·")) time.title += " · " + at.toLocaleString() + " here";
    }
  };

  // -- live: fetch the page again and change in place what differs, but nothing that somebody has in hand
  const FIELDS = "input:not([type=hidden]), textarea, select";
  const IN_HAND = "details.do[open], dialog[open]";

  const touched = (field) => field === document.activeElement
    || (["checkbox", "radio"].includes(field.type) ? field.checked !== field.defaultChecked
      : field.tagName !== "SELECT" && field.value !== field.defaultValue);

  const selected = (node) => {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(node, true);
  };

  // Whether the node must neither be changed nor removed.
  const held = (node) => node.nodeType === 1
    ? node.matches(IN_HAND) || node.querySelector(IN_HAND) !== null || [...node.querySelectorAll(FIELDS)].some(touched) || selected(node)
    : selected(node);

  const keyOf = (node) => node.nodeType === 1 ? node.dataset.row || node.dataset.part || node.dataset.keep || node.id : "";
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  const patchAttributes = (old, fresh) => {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  };

  const patchNode = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) { if (!selected(old)) old.nodeValue = fresh.nodeValue; return; }
    if (old.matches(IN_HAND) || (old.matches("form, fieldset, label") && held(old)) || (old.matches(FIELDS) && touched(old))) return;
    patchAttributes(old, fresh);
    const keyed = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
    const used = new Set();
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      while (place && used.has(place)) place = place.nextSibling;
      const key = keyOf(child), found = key ? keyed.get(key) : place;
      if (!found || used.has(found) || !alike(found, child)) {
        if (child.nodeName === "TR") child.classList.add("new");
        old.insertBefore(child, place);
        used.add(child);
        continue;
      }
      used.add(found);
      if (found === place) place = place.nextSibling;
      else if (!selected(found)) old.insertBefore(found, place);
      patchNode(found, child);
    }
    for (const left of [...old.childNodes]) if (!used.has(left) && !held(left)) left.remove();
  };

  const patch = (fresh) => {
    const focus = document.activeElement;
    for (const old of document.querySelectorAll("[data-part]")) {
      const now = fresh.querySelector(`[data-part="${CSS.escape(old.dataset.part)}"]`);
      if (!now) continue;
      localTimes(now);
      patchNode(old, now);
    }
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true }); // its row has moved
  };

  // -- a store, or a server, that does not answer is said on top
  const named = document.title.replace(/^⚠ /, "");
  let heard = new Date();
  const lost = (what) => {
    const bars = document.querySelector('[data-part="bar"]');
    const since = heard.toISOString().replace("T", " ").slice(0, 19) + " UTC";
    if (bars && !bars.querySelector(".lost")) {
      const bar = document.createElement("p");
      bar.className = "bar lost";
      bar.setAttribute("role", "alert");
      bar.textContent = `${what} has not answered since ${since}; what you see is of then.`;
      bars.replaceChildren(bar);
    }
    document.title = "⚠ " + named;
  };

  const refresh = async () => {
    if (busy || paused || document.hidden || wanted === shown) return;
    if (!document.querySelector("[data-part]")) { shown = wanted; return; } // a form: what changes elsewhere is not in it
    busy = true;
    const target = wanted;
    let again = 300;
    try {
      const answer = await fetch(location.href, { headers: { "X-Redrive-Live": String(target), Accept: "text/html" }, credentials: "same-origin" });
      const fresh = (answer.ok || answer.status === 503) && new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) { busy = false; return; } // since it asked
      if (answer.ok || (fresh && fresh.querySelector(".bar"))) { patch(fresh); document.title = fresh.title; }
      else if (answer.status === 503) lost("The store");
      if (answer.ok) heard = new Date();
      say(answer.ok ? "live" : answer.status === 503 ? "the store cannot be read; trying again" : "reload: the page answers " + answer.status);
      shown = target;
    } catch { say("no answer; trying again"); lost("The server"); again = 2000; }
    busy = false;
    if (wanted !== shown) setTimeout(refresh, again);
  };

  if (body.dataset.live && window.EventSource) {
    const source = new EventSource(body.dataset.live);
    source.addEventListener("version", (event) => { wanted = Number(event.data); refresh(); });
    source.addEventListener("open", () => { if (!paused) say("live"); });
    source.addEventListener("error", () => say(source.readyState === 2 ? "live updates ended; reload for news" : "no answer; trying again"));
    document.addEventListener("visibilitychange", refresh);
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Go on with live updates" : "Pause live updates";
      say(paused ? "paused" : "live");
      refresh();
    });
  }
  localTimes(document);

  // -- lists: one box ticks all
  document.addEventListener("change", (event) => {
    const all = event.target.closest("[data-all]");
    if (all) for (const each of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) each.checked = all.checked;
  });

  // -- leaving typed text behind is asked about
  addEventListener("input", (event) => { if (event.target.closest("form[data-guard]")) changedByHand = true; });
  addEventListener("submit", () => { changedByHand = false; });
  addEventListener("beforeunload", (event) => { if (changedByHand) event.preventDefault(); });

  // -- keys: / finds, g and a letter goes, ? helps
  let going = 0;
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) { typing.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { document.getElementById("find")?.focus(); event.preventDefault(); return; }
    if (event.key === "?") { location.href = body.dataset.root + "keys"; return; }
    if (event.key === "g") { going = Date.now(); return; }
    if (Date.now() - going < 1500) {
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { going = 0; link.click(); }
    }
  });
})();
