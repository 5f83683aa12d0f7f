// The script of a report: it draws figures for the width of the screen, filters, and copies commands. It fetches nothing.
"use strict";
(() => {
  const darkGround = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const narrow = matchMedia("(max-width: 1023px)"); // as in page.css
  const PAPER = { across: 702, down: 930 }; // pixels of an A4 page between its margins, less a heading
  const MIN_SCALE = 0.62; // a figure that is scaled further down is not legible on paper
  const NEAR = "800px 0px"; // figures are drawn when they are so close to the part in view

  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  document.documentElement.classList.add("scripted");

  // -- figures ---------------------------------------------------------------------------------------------------------

  /** A copy of any part of a figure in the colours of one ground; a colour is a pair, as "light|dark". */
  function painted(part, dark, key = "") {
    if (Array.isArray(part)) return part.map((each) => painted(each, dark, key));
    if (part && typeof part === "object")
      return Object.fromEntries(Object.entries(part).map(([name, each]) => [name, painted(each, dark, name)]));
    return typeof part === "string" && key.endsWith("color") ? part.split("|")[dark ? 1 : 0] : part;
  }

  /** Plotly's layout, made of the part that all widths share and the part for one width. */
  function composed(fixed, placed) {
    const axes = Object.keys(fixed).filter((name) => name in placed).map((name) => [name, { ...fixed[name], ...placed[name] }]);
    return { ...fixed, ...placed, ...Object.fromEntries(axes), template: figures.template };
  }

  /** The widest layout that fits, stretched to fill the width unless it is the widest of all. */
  function onScreen(sizes, room) {
    const index = Math.max(sizes.findLastIndex(([width]) => width <= room), 0);
    const [width, height] = sizes[index];
    const stretched = index < sizes.length - 1 ? Math.max(width, room) : width;
    return { index, width: stretched, height, scale: 1 };
  }

  /** The layout with the largest text that fits on one page of paper, or else the shortest one. */
  function onPaper(sizes) {
    const layouts = sizes.map(([width, height], index) => {
      const scale = Math.min(1, PAPER.across / width);
      return { index, width, height, scale };
    });
    const legible = layouts.filter(({ scale }) => scale >= MIN_SCALE);
    const fitting = legible.filter(({ height, scale }) => height * scale <= PAPER.down);
    if (fitting.length) return fitting.reduce((one, other) => (other.scale >= one.scale ? other : one));
    return (legible.length ? legible : layouts).reduce((one, other) =>
      other.height * other.scale <= one.height * one.scale ? other : one);
  }

  /** The text of an element, which is packed. */
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  let figures, source; // the data of all figures, and the source of plotly.js
  let refused = false; // by a browser that cannot unpack them
  const loaded = Promise.all(["page.figures", "page.plotly"].map(unpacked)).then((texts) => {
    figures = JSON.parse(texts[0]);
    source = texts[1];
  }).catch((error) => {
    refused = true;
    const why = `Figures are packed, and this browser cannot unpack them (${error.message}): use one of 2023 or later.`;
    for (const plot of all(".plot")) plot.textContent = why;
  });

  // The page counts as loaded when figures can be drawn, so that what prints it at once waits, as it does for images.
  (function hold(count) {
    if (figures || refused) return;
    const next = () => hold(count + 1);
    const src = `data:image/gif;count=${count};base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7`;
    Object.assign(new Image(), { onload: next, onerror: next, src });
  })(0);

  /** Plotly, whose long source runs when the first figure is drawn, so that the rest of the page need not wait. */
  function plotly() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = source;
      document.head.append(script);
    }
    return window.Plotly;
  }

  class Chart {
    constructor(element) {
      this.element = element;
      this.box = element.querySelector(".box");
      this.plot = element.querySelector(".plot");
      this.sizes = JSON.parse(this.plot.dataset.sizes);
      this.drawn = "";
      element.querySelector(".svg").addEventListener("click", () => this.download());
    }

    get figure() {
      return figures.charts[this.element.id];
    }

    get config() {
      const image = { format: "svg", filename: this.element.id };
      const buttons = { modeBarButtonsToRemove: figures.noButtons, displaylogo: false };
      // Nothing hovers on a touch screen: buttons would always be there, over the legend.
      const shown = { displayModeBar: touch.matches ? false : "hover" };
      return { responsive: false, toImageButtonOptions: image, ...buttons, ...shown };
    }

    /** Keeps the room that the figure will take, so that nothing moves when it is drawn. */
    reserve() {
      if (!this.drawn) this.plot.style.height = `${onScreen(this.sizes, this.box.clientWidth).height}px`;
      const wide = this.sizes[0][0] > this.box.clientWidth && this.box.clientWidth > 0;
      this.box.classList.toggle("wide", wide);
      this.box.tabIndex = wide ? 0 : -1;
      this.element.querySelector(".hint").hidden = !wide;
    }

    draw(paper = false) {
      if (!figures || !this.box.checkVisibility()) return; // text that is not visible has no size
      const place = paper ? onPaper(this.sizes) : onScreen(this.sizes, this.box.clientWidth);
      const dark = darkGround.matches && !paper;
      const wanted = JSON.stringify([place, dark]);
      if (wanted === this.drawn) return;
      const first = !this.drawn;
      this.drawn = wanted;
      const layout = painted(composed(this.figure.fixed, this.figure.layouts[place.index]), dark);
      // Zooms and hidden lines stay; fingers scroll the page.
      Object.assign(layout, { width: place.width, uirevision: "kept" }, touch.matches ? { dragmode: false } : {});
      if (first) this.plot.replaceChildren();
      plotly().react(this.plot, painted(this.figure.data, dark), layout, this.config);
      this.plot.style.height = `${place.height}px`;
      this.plot.style.zoom = place.scale;
      // To a screen reader the plot is one image, and its buttons are for the mouse alone.
      for (const button of all(".modebar-btn", this.plot)) button.tabIndex = -1;
    }

    async download() {
      await loaded;
      if (refused) return;
      const { data, fixed, whole } = this.figure;
      const figure = { data: painted(data, false), layout: painted(composed(fixed, whole), false), config: this.config };
      const { width, height } = whole;
      plotly().downloadImage(figure, { format: "svg", filename: this.element.id, width, height });
    }
  }

  /** The Tab key stops at tables that scroll, so that arrow keys can scroll them, and at no others. */
  function focusIfItScrolls(table) {
    table.tabIndex = table.scrollWidth > table.clientWidth ? 0 : -1;
  }

  const charts = new Map(all(".chart").map((element) => [element, new Chart(element)]));
  const redraw = () => charts.forEach((chart) => (chart.reserve(), chart.drawn && chart.draw()));
  charts.forEach((chart) => chart.reserve());

  window.reportReady = loaded.then(() => new Promise((ready) => {
    const near = new IntersectionObserver((entries) => {
      for (const { target } of entries.filter(({ isIntersecting }) => isIntersecting))
        charts.has(target) ? charts.get(target).draw() : focusIfItScrolls(target);
      requestAnimationFrame(() => ready());
    }, { rootMargin: NEAR });
    all(".chart, .table").forEach((element) => near.observe(element));
    if (!document.querySelector(".chart, .table")) ready();
  }));

  let waiting = 0;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => (redraw(), all(".table").forEach(focusIfItScrolls)), 100);
  }).observe(document.querySelector("main"));
  darkGround.addEventListener("change", redraw);
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw(true)));
  addEventListener("afterprint", redraw);

  // -- navigation ------------------------------------------------------------------------------------------------------

  /** Scrolls to the target of a link, and unfolds what hides it. */
  function show(hash) {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement) if (each.matches("details")) each.open = true;
    target.scrollIntoView({ behavior: "instant" });
    charts.get(target)?.draw();
  }
  addEventListener("hashchange", () => show(location.hash));

  const folds = all(".side details");
  const fold = () => folds.forEach((each) => (each.open = !narrow.matches));
  narrow.addEventListener("change", fold);
  fold();
  for (const each of folds)
    each.addEventListener("toggle", () => {
      if (narrow.matches && each.open) folds.forEach((other) => other !== each && (other.open = false));
    });
  const close = () => narrow.matches && folds.forEach((each) => (each.open = false));
  addEventListener("keydown", ({ key }) => key === "Escape" && close());
  addEventListener("click", ({ target }) => (!target.closest(".side") || target.closest("nav a")) && close());

  const links = new Map(all(".side nav a").map((link) => [link.hash.slice(1), link]));
  const passing = new IntersectionObserver((entries) => {
    const here = entries.filter(({ isIntersecting }) => isIntersecting).pop();
    if (!here) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(here.target.id)?.setAttribute("aria-current", "true");
  }, { rootMargin: "-10% 0px -80% 0px" });
  all("main > section").forEach((section) => passing.observe(section));

  for (const button of all(".copy"))
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      // The clipboard's own interface is missing in some browsers where pages are files.
      const copied = navigator.clipboard ? await navigator.clipboard.writeText(code.textContent).then(() => true, () => false) : false;
      button.textContent = copied || document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });

  // -- filters: their state is in the address, where it can be shared ---------------------------------------------------

  const form = document.querySelector(".filters");
  const boxes = all(".filters input");
  const tagged = all("[data-tags]").map((element) => [element, Object.entries(JSON.parse(element.dataset.tags))]);
  const rows = all("tbody tr");

  function filter() {
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => `${box.name}:${box.value}`));
    for (const [element, tags] of tagged) element.hidden = tags.some(([key, value]) => off.has(`${key}:${value}`));
    for (const table of all(".table")) table.hidden = all("tbody tr[hidden]", table).length > 0 && !table.querySelector("tbody tr:not([hidden])");
    for (const section of all("main > section")) {
      const parts = all(".chart, tbody tr", section);
      section.querySelector(":scope > .nothing").hidden = !parts.length || parts.some((part) => !part.hidden);
    }
    const shown = [[charts.size, "chart", [...charts.keys()]], [rows.length, "row", rows]]
      .filter(([count]) => count)
      .map(([count, thing, each]) => `${each.filter((one) => !one.hidden).length} of ${count} ${thing}${count === 1 ? "" : "s"}`);
    form.querySelector(".count").textContent = `Shown: ${shown.join(", ")}.`;
    redraw();
    return off;
  }

  function remember(off) {
    const address = new URL(location);
    address.search = new URLSearchParams([...off].map((each) => ["hide", each]));
    try { history.replaceState(null, "", address); } catch { /* some browsers allow it to no page that is a file */ }
  }

  const asked = new Set(new URLSearchParams(location.search).getAll("hide"));
  for (const box of boxes) box.checked = !asked.has(`${box.name}:${box.value}`);
  if (form) {
    filter();
    form.addEventListener("change", () => remember(filter()));
    form.addEventListener("reset", () => setTimeout(() => remember(filter())));
  }
  show(location.hash);
})();
