"use strict";
(function () {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const switcher = document.getElementById("theme");
  const palette = document.getElementById("main").dataset.palette.split(" ");
  const drawn = new Set();

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  // Where there is little room, only the powers of ten of a logarithmic axis.
  function ticks(given, narrow) {
    const places = (given && given.tickvals) || [];
    const kept = places.filter((it) => Number.isInteger(Number(Math.log10(it).toFixed(6))));
    if (!narrow || kept.length < 2) {
      return {};
    }
    return { tickvals: kept, ticktext: kept.map((it) => given.ticktext[places.indexOf(it)]) };
  }

  function axis(given, narrow) {
    const line = colour("--line");
    return { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...given, ...ticks(given, narrow) };
  }

  function layoutOf(given, width) {
    const ink = colour("--ink");
    const legend = { font: { color: ink }, bgcolor: "rgba(0,0,0,0)", ...(given.legend || {}) };
    return {
      colorway: palette,
      ...given,
      autosize: true,
      width: width,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: width < 500 ? 11 : 13, color: ink },
      margin: { l: width < 500 ? 45 : 60, r: 15, t: 30, b: 50 },
      xaxis: axis(given.xaxis, width < 500),
      yaxis: axis(given.yaxis, false),
      legend: legend,
      shapes: (given.shapes || []).map((it) => ({ ...it, line: { color: colour("--soft"), ...it.line } })),
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: ink } },
    };
  }

  // The choice that is shown: a picture, or several small ones beside each other, each below its title.
  function draw(id) {
    const element = document.getElementById(id);
    const select = document.getElementById(id + "-choice");
    const place = select ? Number(select.value) : 0;
    const choice = plots[id][place];
    if (element.dataset.shown !== String(place)) {
      element.dataset.shown = String(place);
      element.classList.toggle("several", choice.panels.length > 1);
      element.replaceChildren(...choice.panels.map(function (panel) {
        const title = document.createElement("p");
        title.textContent = panel.title;
        const box = document.createElement("div");
        box.append(title, document.createElement("div"));
        return box;
      }));
    }
    choice.panels.forEach(function (panel, number) {
      const picture = element.children[number].lastChild;
      const data = JSON.parse(JSON.stringify(panel.data));
      const options = { displaylogo: false, displayModeBar: "hover" };
      Plotly.react(picture, data, layoutOf(panel.layout, picture.clientWidth), options);
    });
    document.getElementById(id + "-note").textContent = choice.note;
    drawn.add(id);
  }

  function redraw() {
    drawn.forEach(draw);
  }

  function setTheme(theme) {
    if (theme === "auto") {
      delete root.dataset.theme;
    } else {
      root.dataset.theme = theme;
    }
    redraw();
  }

  let kept = "auto";
  try {
    kept = localStorage.getItem("pymllm-report-theme") || "auto";
  } catch (error) {
    kept = "auto"; // a browser that keeps nothing for files
  }
  switcher.value = kept;
  setTheme(switcher.value);
  switcher.addEventListener("change", function () {
    setTheme(switcher.value);
    try {
      localStorage.setItem("pymllm-report-theme", switcher.value);
    } catch (error) {
      return;
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // Pictures are drawn as they come near: a page of many benchmarks opens at once.
  const near = new IntersectionObserver(
    function (entries) {
      entries.filter((it) => it.isIntersecting).forEach(function (it) {
        near.unobserve(it.target);
        draw(it.target.id);
      });
    },
    { rootMargin: "600px" },
  );
  Object.keys(plots).forEach(function (id) {
    const select = document.getElementById(id + "-choice");
    if (select) {
      select.addEventListener("change", () => draw(id));
    }
    near.observe(document.getElementById(id));
  });

  let waiting = 0;
  addEventListener("resize", function () {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
  addEventListener("beforeprint", () => Object.keys(plots).forEach(draw));

  // Long tables can be searched, and cut down to what is violated, unknown or worse.
  document.querySelectorAll("main table").forEach(function (table, place) {
    const rows = Array.from(table.tBodies[0].rows);
    if (rows.length <= 12) {
      return;
    }
    const line = document.createElement("p");
    line.className = "find";
    line.innerHTML =
      '<label>Find <input type="search"></label>' +
      '<label><input type="checkbox"> only what is violated, missed or unknown</label><span aria-live="polite"></span>';
    const [words, box] = line.querySelectorAll("input");
    const count = line.querySelector("span");
    function choose() {
      const asked = words.value.trim().toLowerCase();
      rows.forEach(function (row) {
        const has = row.textContent.toLowerCase().includes(asked);
        row.hidden = !has || (box.checked && !row.querySelector("td.bad, td.unknown"));
      });
      const left = rows.filter((row) => !row.hidden).length;
      count.textContent = left === rows.length ? "" : left + " of " + rows.length + " rows";
    }
    words.addEventListener("input", choose);
    box.addEventListener("change", choose);
    box.parentElement.hidden = !table.querySelector("td.bad, td.unknown");
    table.closest(".scroll").before(line);
  });

  // Hints: by pointer, touch and keyboard. A table is one stop of the Tab key; arrows lead from hint to hint.
  const hint = document.createElement("div");
  hint.id = "hint";
  hint.setAttribute("role", "tooltip");
  hint.hidden = true;
  document.body.append(hint);
  function hide() {
    hint.hidden = true;
    document.querySelectorAll("[aria-describedby='hint']").forEach((it) => it.removeAttribute("aria-describedby"));
  }
  function show(element) {
    hide();
    hint.textContent = element.dataset.hint;
    hint.hidden = false;
    element.setAttribute("aria-describedby", "hint");
    const box = element.getBoundingClientRect();
    hint.style.left = Math.max(4, Math.min(box.left, innerWidth - hint.offsetWidth - 12)) + scrollX + "px";
    const below = box.bottom + hint.offsetHeight + 8 < innerHeight;
    hint.style.top = (below ? box.bottom + 4 : box.top - hint.offsetHeight - 4) + scrollY + "px";
  }
  const groups = new Map();
  document.querySelectorAll("main [title]:not(svg *)").forEach(function (element) {
    const group = element.closest("table") || element.parentElement;
    element.dataset.hint = element.title;
    element.removeAttribute("title");
    const mates = groups.get(group) || groups.set(group, []).get(group);
    element.tabIndex = mates.length ? -1 : 0;
    mates.push(element);
    element.addEventListener("mouseenter", () => show(element));
    element.addEventListener("mouseleave", hide);
    element.addEventListener("focus", () => show(element));
    element.addEventListener("blur", hide);
    element.addEventListener("click", () => show(element));
    element.addEventListener("keydown", function (event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const seen = mates.filter((it) => it.offsetParent !== null);
      const next = seen[seen.indexOf(element) + (step || 0)];
      if (step && next) {
        event.preventDefault();
        element.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    });
  });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
