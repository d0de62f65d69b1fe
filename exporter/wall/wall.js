// Draws /snapshot.json anew every two seconds. Names come from users: they only ever become text, never markup.
'use strict';

const EVERY_MS = 2000;
const HOUR_S = 3600;
const CAUSES_OVER = 15; // drawings
let before = null;
const past = []; // drawings, for causes of idle time: of two seconds they are too few

/** An element with text or children; `kind` is NAME or NAME.CLASS. */
function make(kind, ...content) {
  const [name, ...classes] = kind.split('.');
  const out = document.createElement(name);
  if (classes.length) out.className = classes.join(' ');
  out.append(...content.map((part) => (part instanceof Node ? part : String(part))));
  return out;
}

const percent = (ratio) => (ratio === undefined || ratio === null ? '–' : `${Math.round(ratio * 100)} %`);
const rounded = (value) => (value >= 100 ? Math.round(value) : Number(value.toPrecision(2)));

function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; ++unit) count /= 1024;
  return `${rounded(count)} ${units[unit]}`;
}

function duration(s) {
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Columns beginning with # are numbers, with @ they hold names, which may be of any length. */
function table(columns, rows) {
  const kinds = columns.map((title) => ({'#': '.number', '@': '.name'}[title[0]] || ''));
  const cell = (name, content, column) => make(name + kinds[column], ...[content].flat());
  const head = make('tr', ...columns.map((title, i) => cell('th', title.replace(/^[#@]/, ''), i)));
  return make('div.wide', make('table', make('thead', head), make('tbody', ...rows.map((row) => make('tr', ...row.map((content, i) => cell('td', content, i)))))));
}

function bar(parts, title) {
  const out = make('div.bar');
  out.title = title;
  for (const part of parts) {
    const span = make('span');
    span.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
    out.append(span);
  }
  return out;
}

function marks(pairs) {
  return pairs.filter(([on]) => on).map(([, text, bad]) => make(bad ? 'span.mark.bad' : 'span.mark', text));
}

function shareOf(slice) {
  return slice.guaranteed ? `${percent(slice.target_share)} guaranteed` : `weight ${Math.round(100 * slice.target_share)}`;
}

function gpuCard(gpu, tenants) {
  const out = make(gpu.lost ? 'div.card.lost' : 'div.card', make('h3', `[${gpu.index}] ${gpu.name}`), make('small', gpu.uuid));
  out.append(make('p', ...marks([[gpu.lost, 'LOST', true], [gpu.exclusive, 'whole'], [gpu.draining && !gpu.drained, 'draining'], [gpu.drained, 'drained'], [gpu.software, 'software'],
    [gpu.unmanaged_processes > 0, `${gpu.unmanaged_processes} beside Sluice`, true], [gpu.xid_errors > 0, `${gpu.xid_errors} device errors`, true]])));
  out.append(make('p', `works ${percent(gpu.busy)}, guaranteed ${percent(gpu.guaranteed_share)}`), bar([gpu.busy || 0], 'work of the last ten seconds'));
  const beyond = gpu.memory_quota_bytes > gpu.memory_capacity_bytes ? `, quotas of ${bytes(gpu.memory_quota_bytes)}` : '';
  out.append(make('p', `${bytes(gpu.memory_held_bytes)} of ${bytes(gpu.memory_capacity_bytes)} held${beyond}`));
  out.append(bar(gpu.slices.map((slice) => (slice.memory_used_bytes - slice.memory_swapped_bytes) / gpu.memory_capacity_bytes), 'memory by tenant'));
  if (gpu.drain) out.append(make('p.hint', gpu.drain));
  if (!gpu.slices.length) out.append(make('p.hint', 'nobody'));
  else {
    out.append(table(['@tenant', '#share', '#memory'], gpu.slices.map((slice) => {
      const tenant = tenants.get(slice.tenant) || {user: '?', class: '?', state: 'running'};
      const flags = marks([[tenant.state !== 'running', tenant.state], [tenant.runaway, 'runaway', true], [tenant.unregistered > 0, 'unregistered', true],
        [tenant.unhooked > 0, 'unhooked', true], [slice.waiting, 'waits']]);
      return [[`${slice.tenant} ${tenant.user} `, make('small', tenant.class), ' ', ...flags], `${percent(slice.achieved_share)}, ${shareOf(slice)}`,
        `${bytes(slice.memory_used_bytes)} of ${bytes(slice.memory_limit_bytes)}`];
    })));
  }
  return out;
}

function line(kind, agos, values) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  let path = '', pen = false, last = 0;
  agos.forEach((ago, i) => {
    const value = values[i];
    if (value === null || value === undefined || ago > HOUR_S) { pen = false; return; }
    if (pen && last - ago > 30) pen = false; // nobody looked meanwhile
    path += `${pen ? 'L' : 'M'}${HOUR_S - ago} ${100 - 100 * Math.min(1, value)}`;
    pen = true;
    last = ago;
  });
  node.setAttribute('class', kind);
  node.setAttribute('d', path);
  return node;
}

function curve(title, agos, lines) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', `0 -2 ${HOUR_S} 104`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', title);
  for (const [kind, values] of lines) svg.append(line(kind, agos, values));
  return svg;
}

function hourCards(data) {
  const hour = data.hour;
  if (!hour.ago_s.length) return [make('p.hint', 'nothing yet; a point every ten seconds')];
  const names = new Map(data.gpus.map((gpu) => [gpu.uuid, `[${gpu.index}] ${gpu.name}`]));
  const places = data.gpus.map((gpu) => gpu.uuid);
  const place = ([uuid]) => (places.includes(uuid) ? places.indexOf(uuid) : places.length); // one that is gone comes last
  const out = Object.entries(hour.gpus).sort((a, b) => place(a) - place(b)).map(([uuid, of]) => make('div.card', make('h3', names.get(uuid) || uuid), make('small', uuid),
    make('p', make('span.key-busy', 'works '), make('span.key-held', 'memory held')), curve('the last hour', hour.ago_s, [['held', of.held], ['busy', of.busy]])));
  const most = Math.max(1, ...hour.queued, ...hour.running);
  out.push(make('div.card', make('h3', 'Tenants'), make('p', make('span.key-busy', 'running '), make('span.key-held', 'waiting '), make('small', `up to ${most}`)),
    curve('tenants of the last hour', hour.ago_s, [['held', hour.queued.map((n) => n / most)], ['busy', hour.running.map((n) => n / most)]])));
  return out;
}

/** Growth per second since the last drawing of the same tenant, or nothing. */
function rateOf(data, tenant, pick) {
  const old = before && before.taken_s < data.taken_s && before.tenants.find((one) => one.tenant === tenant.tenant);
  const [was, is] = [old && pick(old), pick(tenant)];
  return was === undefined || was === null || was === false || is < was ? null : (is - was) / (data.taken_s - before.taken_s);
}
const rateText = (rate) => (rate === null ? '–' : `${rounded(rate)}/s`);

/** Of each of a tenant's GPUs: what it did since the oldest drawing there is, as parts of what is known of that time. */
function causesOf(data, tenant) {
  const find = (one, uuid) => one.gpus.find((gpu) => gpu.uuid === uuid)?.slices.find((slice) => slice.tenant === tenant && slice.idle_s);
  return data.gpus.flatMap((gpu) => {
    const now = find(data, gpu.uuid);
    const old = past.map((one) => find(one, gpu.uuid)).find((slice) => slice);
    if (!now || !old) return [];
    const grown = [['busy', now.busy_s - old.busy_s], ...Object.keys(now.idle_s).map((cause) => [cause, now.idle_s[cause] - old.idle_s[cause]])];
    const all = grown.reduce((sum, [, s]) => sum + Math.max(0, s), 0);
    return all > 0 ? [{gpu, parts: grown.map(([name, s]) => [name, Math.max(0, s) / all])}] : [];
  });
}

/** Bars of a tenant's GPUs, and beside them the causes that matter, longest first. */
function causeBars(data, tenant) {
  return causesOf(data, tenant.tenant).map(({gpu, parts}) => {
    const out = bar(parts.map(([, part]) => part), `what ${gpu.name} did for tenant ${tenant.tenant}`);
    out.classList.add('causes');
    parts.forEach(([name], i) => { out.children[i].className = `cause-${name}`; });
    const told = parts.filter(([, part]) => part >= 0.005).sort((a, b) => b[1] - a[1]);
    return make('div', out, make('p', ...told.map(([name, part]) => make(`span.key.cause-${name}`, `${name} ${percent(part)} `))));
  });
}

function draw(data) {
  const tenants = new Map(data.tenants.map((tenant) => [tenant.tenant, tenant]));
  const show = (id, ...nodes) => document.getElementById(id).replaceChildren(...nodes);
  const state = document.getElementById('state');
  state.className = data.up ? '' : 'bad';
  state.textContent = data.up ? `${data.tenants_in_all} running, ${data.queue_in_all} waiting; broker up for ${duration(data.broker_uptime_s)}` : data.error;

  show('gpus', ...data.gpus.map((gpu) => gpuCard(gpu, tenants)));
  show('queue', data.queue.length ? table(['#', '@user', 'class', '#since', 'waits for'], data.queue.map((one) => [one.position, one.user, one.class,
    duration(one.waited_s), one.why || one.reason])) : make('p.hint', data.up ? 'nobody waits' : 'not known'));
  if (data.queue_in_all > data.queue.length) document.getElementById('queue').append(make('p.hint', `and ${data.queue_in_all - data.queue.length} more`));

  const training = data.tenants.filter((tenant) => tenant.training);
  document.getElementById('training-section').hidden = !training.length;
  show('training', table(['@tenant', '#steps', '#samples', '#only communicates', '#slowest rank'], training.map((tenant) => {
    const of = tenant.training;
    const alone = rateOf(data, tenant, (one) => one.training && one.training.exposed_communication_s);
    return [`${tenant.tenant} ${tenant.user}`, `${of.steps} (${rateText(rateOf(data, tenant, (one) => one.training && one.training.steps))})`,
      rateText(rateOf(data, tenant, (one) => one.training && one.training.samples)), alone === null ? '–' : percent(alone),
      of.straggler === undefined ? '–' : `${of.straggler.toFixed(2)} x`];
  })));

  past.push(data);
  if (past.length > CAUSES_OVER || !data.up) past.splice(0, data.up ? past.length - CAUSES_OVER : past.length);
  const whole = make('p.hint', 'has its GPUs as a whole: nothing is metered there, and causes are not known');
  const bars = data.tenants.map((tenant) => [tenant, tenant.class === 'exclusive' ? [whole.cloneNode(true)] : causeBars(data, tenant)]).filter(([, list]) => list.length);
  document.getElementById('causes-section').hidden = !bars.length;
  show('causes', ...bars.map(([tenant, list]) => make('div.card', make('h3', `${tenant.tenant} ${tenant.user}`), ...list)));

  const watched = data.tenants.filter((tenant) => tenant.off_cpu);
  document.getElementById('idle-section').hidden = !watched.length;
  show('idle', table(['@tenant', '#asleep', '#waiting for a CPU'], watched.map((tenant) => [`${tenant.tenant} ${tenant.user}`,
    ...['sleeping_s', 'runnable_s'].map((key) => { const rate = rateOf(data, tenant, (one) => one.off_cpu && one.off_cpu[key]); return rate === null ? '–' : rate.toFixed(2); })])));

  show('hour', ...hourCards(data));
  before = data.up ? data : null;
}

async function look() {
  try {
    const answer = await fetch('snapshot.json', {cache: 'no-store'});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    draw(await answer.json());
  } catch (error) {
    const state = document.getElementById('state');
    state.className = 'bad';
    state.textContent = `the exporter does not answer (${error.message}); what is below is old`;
  }
  setTimeout(look, EVERY_MS);
}

look();
