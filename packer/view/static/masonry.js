// Cards of different heights without empty room below them: each spans as many thin rows of its grid as it is high (view.css).
const ROW = 4, GAP = 16;

export function pile(grid) {
  grid.classList.add("piled");
  const span = (card) => {
    const high = card.getBoundingClientRect().height;
    if (high) card.style.gridRowEnd = `span ${Math.ceil((high + GAP) / ROW)}`;
  };
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => span(target)));
  for (const card of grid.children) { span(card); observer.observe(card); }
}
