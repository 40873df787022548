// Live updates, keys and small helps. Every page reads and every form works without this file.
"use strict";
(() => {
  const body = document.body;
  const state = document.getElementById("live-state");
  const pause = document.getElementById("live-pause");
  let paused = false, wanted = 0, shown = Number(body.dataset.version || 0), busy = false, changedByHand = false;
  let from = null, drawn = null; // a range that is being dragged over a chart: nothing is patched meanwhile

  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };

  // -- times: how long ago stays true, and the clock is UTC's or the reader's own
  const cookie = (name) => document.cookie.split("; ").find((each) => each.startsWith(name + "="))?.slice(name.length + 1);
  const keep = (name, value) => { document.cookie = `${name}=${value}; path=${body.dataset.root}; max-age=31536000; samesite=strict`; };
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const lasts = (s) => { // two units at most, as the server writes them
    if (s < 60) return s + "s";
    const small = s < 3600 ? 1 : s < 86400 ? 60 : 3600, round = Math.round(s / small) * small;
    const at = UNITS.findIndex(([size]) => round >= size), [size, unit] = UNITS[at];
    const rest = at < 3 ? Math.floor(round % size / UNITS[at + 1][0]) : 0;
    return Math.floor(round / size) + unit + (rest ? rest + UNITS[at + 1][1] : "");
  };
  let local = cookie("redrive-zone") === "local";
  const localTimes = (root) => {
    const now = new Date();
    const words = (at, options) => at.toLocaleString("en-GB", { timeZone: local ? undefined : "UTC", ...options }).replace(",", "");
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime), s = Math.round((now - at) / 1000), [clock, ago] = time.children;
      if (!time.title.includes("·")) time.title += " · " + at.toLocaleString() + " here";
      if (!ago) continue;
      const day = { day: "2-digit", month: "short" }, hour = { hour: "2-digit", minute: "2-digit" };
      const spot = words(at, words(at, day) === words(now, day) ? hour : { ...day, ...hour });
      const distance = Math.abs(s) < 1 ? "now" : s > 0 ? lasts(s) + " ago" : "in " + lasts(-s);
      if (clock.textContent !== spot) clock.textContent = spot;
      if (ago.textContent !== distance) ago.textContent = distance;
    }
  };

  const localTicks = (root) => { // the labels below charts
    for (const tick of root.querySelectorAll(".plot text[data-at]")) {
      const form = tick.textContent.includes(":") ? { hour: "2-digit", minute: "2-digit" } : { day: "2-digit", month: "short" };
      tick.textContent = new Date(tick.dataset.at).toLocaleString("en-GB", { timeZone: local ? undefined : "UTC", ...form });
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
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open" && name !== "tabindex") old.removeAttribute(name);
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
    for (const left of [...old.childNodes]) if (!used.has(left) && !held(left) && !(left.nodeType === 1 && left.matches(".copy"))) left.remove();
  };

  const FLASH_MS = 5000; // for so long at least what an action did is said: its state may pass
  const partOf = (root, part) => root.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
  const patch = (fresh) => {
    const focus = document.activeElement;
    for (const old of document.querySelectorAll("[data-part]")) {
      const now = partOf(fresh, old);
      if (!now) { if (!held(old)) old.remove(); continue; } // what it said is over
      localTimes(now); localTicks(now);
      patchNode(old, now);
    }
    for (const now of fresh.querySelectorAll("[data-part]")) {
      const before = now.previousElementSibling, after = now.nextElementSibling;
      if (partOf(document, now)) continue;
      const [near, place] = before?.dataset.part ? [partOf(document, before), "after"] : after?.dataset.part ? [partOf(document, after), "before"] : [];
      if (near) { localTimes(now); localTicks(now); near[place](now); }
    }
    if (performance.now() > FLASH_MS) for (const said of document.querySelectorAll("main > .said")) if (!selected(said)) said.remove();
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true }); // its row has moved
  };

  // -- a store, or a server, that does not answer is said on top
  const named = document.title.replace(/^⚠ /, "");
  let heard = new Date(), madeAt = performance.now(); // when the store was heard, and this page was made
  const OLD_MS = 5000;
  const old = () => { // no news, and the figures stay as they are: say how old that is
    const bars = document.querySelector('[data-part="bar"]'), known = bars?.querySelector(".bar");
    if (!bars || (known && !known.dataset.own)) return;
    const age = performance.now() - madeAt;
    if (document.hidden || paused || from || age < OLD_MS) { known?.remove(); return; }
    const bar = known || document.createElement("p");
    bar.className = "bar old"; bar.dataset.own = "1";
    bar.textContent = `Figures of ${lasts(Math.round(age / 1000))} ago.`;
    if (!known) bars.append(bar);
  };
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
    if (busy || paused || from || document.hidden || wanted === shown) return;
    if (!document.querySelector("[data-part]")) { shown = wanted; return; } // a form: what changes elsewhere is not in it
    busy = true;
    const target = wanted;
    let again = 300;
    try {
      const answer = await fetch(location.href, { headers: { "X-Redrive-Live": String(target), Accept: "text/html" }, credentials: "same-origin" });
      const fresh = (answer.ok || answer.status === 503) && new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused || from) { busy = false; return; } // since it asked
      if (answer.ok || (fresh && fresh.querySelector(".bar"))) { patch(fresh); document.title = fresh.title; }
      else if (answer.status === 503) lost("The store");
      if (answer.ok) { heard = new Date(); madeAt = performance.now(); }
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
    document.addEventListener("visibilitychange", () => { if (!document.hidden) madeAt = performance.now() - OLD_MS / 2; refresh(); });
    if (document.querySelector("[data-part=bar] ~ main [data-part]")) setInterval(old, 500);
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Go on with live updates" : "Pause live updates";
      say(paused ? "paused" : "live");
      refresh();
    });
  }
  localTimes(document); localTicks(document);
  setInterval(() => { if (!document.hidden && !paused) localTimes(document); }, 1000);

  // -- the reader's own theme and zone
  const themed = document.getElementById("theme"), zoned = document.getElementById("zone");
  if (themed && zoned) {
    themed.hidden = zoned.hidden = false;
    const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    themed.addEventListener("click", () => { const theme = dark() ? "light" : "dark"; document.documentElement.dataset.theme = theme; keep("redrive-theme", theme); });
    const zone = () => { zoned.textContent = local ? "Local time" : "UTC"; zoned.title = local ? "Show times in UTC" : "Show times in your own zone"; };
    zoned.addEventListener("click", () => { local = !local; keep("redrive-zone", local ? "local" : "utc"); zone(); localTimes(document); localTicks(document); });
    zone();
  }

  // -- what can be copied
  if (navigator.clipboard) for (const each of document.querySelectorAll("main pre, main .command code, [data-copies]")) {
    const button = document.createElement("button"), text = (document.getElementById(each.dataset.copies) || each).textContent;
    button.type = "button"; button.className = "copy"; button.ariaLabel = "Copy";
    button.addEventListener("click", () => { navigator.clipboard.writeText(text); button.ariaLabel = "Copied"; setTimeout(() => { button.ariaLabel = "Copy"; }, 1500); });
    if (each.nodeName === "PRE" || each.dataset.copies) each.append(button); else each.after(button);
  }

  // -- lists: one box ticks all
  document.addEventListener("change", (event) => {
    const all = event.target.closest("[data-all]");
    if (all) for (const each of document.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) each.checked = all.checked;
  });

  // -- rooms: a range dragged over a chart, the search box's terms
  const spot = (plot, event) => { const box = plot.getBoundingClientRect(); return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)); };
  addEventListener("pointerdown", (event) => {
    const plot = event.button === 0 && event.pointerType !== "touch" && event.target.closest?.(".plot svg[data-begin]");
    if (plot) { from = { plot, at: spot(plot, event) }; event.preventDefault(); }
  });
  addEventListener("pointermove", (event) => {
    if (!from) return;
    const to = spot(from.plot, event);
    if (!drawn) { drawn = document.createElementNS("http://www.w3.org/2000/svg", "rect"); drawn.setAttribute("class", "drag"); drawn.setAttribute("height", "144"); from.plot.append(drawn); }
    drawn.setAttribute("x", Math.min(from.at, to) * 100 + "%");
    drawn.setAttribute("width", Math.abs(from.at - to) * 100 + "%");
  });
  const letGo = () => { drawn?.remove(); from = drawn = null; };
  addEventListener("pointercancel", () => { letGo(); refresh(); });
  addEventListener("pointerup", (event) => {
    if (!from) return;
    const ends = [from.at, spot(from.plot, event)].sort((a, b) => a - b), { begin, end } = from.plot.dataset;
    letGo();
    if (ends[1] - ends[0] < 0.01) return refresh(); // a click
    const at = (part) => new Date(Math.round((Number(begin) + (end - begin) * part) / 60) * 60000).toISOString().slice(0, 16) + "Z";
    const address = new URL(location.href);
    address.searchParams.delete("since");
    address.searchParams.set("from", at(ends[0])); address.searchParams.set("to", at(ends[1]));
    if (at(ends[0]) !== at(ends[1])) location.assign(address);
  });

  const terms = document.getElementById("terms"), known = [...terms?.options ?? []].map((each) => each.value);
  for (const box of document.querySelectorAll("input[list=terms]")) box.addEventListener("input", () => { // the last term, after what is typed before it
    const [, before, last] = box.value.match(/^(.*[\s(]-?|-?)([^\s]*)$/s) ?? ["", "", box.value];
    const fit = known.filter((each) => each.toLowerCase().includes(last.toLowerCase())).slice(0, 40);
    terms.replaceChildren(...fit.map((each) => { const option = document.createElement("option"); option.value = before + each; return option; }));
  });

  // -- leaving typed text behind is asked about
  addEventListener("input", (event) => { if (event.target.closest("form[data-guard]")) changedByHand = true; });
  addEventListener("submit", () => { changedByHand = false; });
  addEventListener("beforeunload", (event) => { if (changedByHand) event.preventDefault(); });

  // -- the keys, above the page that the reader is on
  const help = async () => {
    const known = document.getElementById("help");
    if (known) { known.showModal(); return; }
    const answer = await fetch(body.dataset.root + "keys", { headers: { Accept: "text/html" }, credentials: "same-origin" });
    const table = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main table");
    if (!table) return;
    const dialog = document.createElement("dialog"), close = document.createElement("button");
    dialog.id = "help"; close.textContent = "Close"; close.addEventListener("click", () => dialog.close());
    dialog.setAttribute("aria-label", "Keys");
    dialog.append(table, close); body.append(dialog); dialog.showModal();
  };

  // -- rows: j and k go, x ticks, Enter opens
  const rows = () => [...document.querySelectorAll("main table[data-rows] tbody tr")];
  const row = () => document.activeElement?.closest?.("table[data-rows] tbody tr");
  const go = (step) => {
    const all = rows(), at = all.indexOf(row()), to = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
    if (to) { to.tabIndex = -1; to.focus(); }
  };

  // -- keys: / finds, g and a letter goes, ? helps
  let going = 0;
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) { typing.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { document.getElementById("find")?.focus(); event.preventDefault(); return; }
    if (event.key === "?") { help(); return; }
    if (event.key === "g") { going = Date.now(); return; }
    if (Date.now() - going < 1500) {
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { going = 0; link.click(); return; }
    }
    if (event.key === "j" || event.key === "k") { go(event.key === "j" ? 1 : -1); return; }
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (!event.target.closest("pre, .wide")) document.querySelector(`main a[rel=${event.key === "ArrowLeft" ? "prev" : "next"}]`)?.click();
      return;
    }
    if (event.key === "x") { row()?.querySelector("input[type=checkbox]")?.click(); return; }
    if (event.key === "Enter" && event.target === row()) { row().querySelector("a[href]")?.click(); return; }
  });
})();
