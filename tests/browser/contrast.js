// Words that stand out from what is behind them by less than 4.5 to 1.
() => {
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const rgb = (s) => s.match(/[\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3]) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const painted = (colour) => {
    const e = document.body.appendChild(document.createElement("i"));
    e.style.color = colour;
    const found = rgb(getComputedStyle(e).color);
    e.remove();
    return found;
  };
  const low = [];
  for (const e of document.querySelectorAll("h1, h2, h3, p, li, dt, dd, td, th, a, button, span, pre, summary, text")) {
    if (!e.checkVisibility() || !e.textContent.trim() || e.closest(".jump, .hidden")) continue;
    const svg = e.tagName === "text";
    const value = svg ? getComputedStyle(e).fill : getComputedStyle(e).color;
    if (!value.startsWith("rgb") || e.getAttribute("stroke")) continue;
    // Words upon a part of a bar: var(--on-part-kv) stands upon var(--part-kv).
    const part = svg && /^var\(--on-(.*)\)$/.exec(e.getAttribute("fill"));
    const ground = part ? painted(`var(--${part[1]})`) : behind(e);
    const [a, b] = [light(rgb(value)), light(ground)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(`${value}: ${e.textContent.trim().slice(0, 30)}`);
  }
  return low;
}
