// What of the page's text cannot be read: beyond the window, cut off, or upon other text.
() => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} px wide`);
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length;
  const say = (e) => (e.textContent || "").trim().slice(0, 40);
  for (const e of document.body.querySelectorAll("*")) {
    if (!seen(e) || e.closest("svg, .scroll, pre, .hidden, .jump, #tip")) continue;
    const box = e.getBoundingClientRect();
    if (box.right > root.clientWidth + 1 || box.left < -1) found.push(`beyond the window: ${say(e)}`);
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline")
      found.push(`wider than its box: <${e.tagName}> ${say(e)}`);
  }
  for (const svg of document.querySelectorAll(".chart svg")) {
    if (!seen(svg)) continue;
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")]
      .filter((t) => t.textContent.trim() && t.getAttribute("opacity") !== "0" && !t.getAttribute("stroke"))
      .map((t) => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([words, box], i) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`outside of its chart: ${words}`);
      for (const [other, at] of texts.slice(i + 1)) {
        const wide = Math.min(box.right, at.right) - Math.max(box.left, at.left);
        const high = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
        // Boxes of letters reach above and below the letters.
        if (wide > 1 && high > 4) found.push(`"${words}" upon "${other}"`);
      }
    });
  }
  const blocks = [...document.querySelectorAll("h1, h2, h3, p, li, dt, dd, button, pre, summary, figcaption, td, th")]
    .filter((e) => seen(e) && !e.closest("svg, .scroll, .hidden, .jump, #tip") && !e.querySelector("h3, p, li, button, figure"))
    .map((e) => [e, e.getBoundingClientRect()]);
  blocks.forEach(([e, box], i) => {
    for (const [other, at] of blocks.slice(i + 1, i + 40)) {
      const wide = Math.min(box.right, at.right) - Math.max(box.left, at.left);
      const high = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
      if (wide > 1 && high > 3 && !e.contains(other) && !other.contains(e))
        found.push(`"${say(e)}" upon "${say(other)}"`);
    }
  });
  return found;
}
