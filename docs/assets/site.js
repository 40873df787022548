// What the theme leaves out for screen readers and keyboards. It adds parts while a page runs, so this watches for them.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code ${at + 1}`));
  document.querySelectorAll(".md-nav[data-md-level]:not([data-md-level='0'])").forEach((nav, at) => {
    const title = nav.querySelector(".md-nav__title")?.textContent.trim(); // sections of two tabs may share a title
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `${title}, part ${at + 1}`);
  });
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    table.tabIndex = 0; // a wide table scrolls by the keyboard
  }
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
